#include "families/top_k/family.hpp"

#include <fmt/format.h>

#include "abi/top_k_arguments.h"
#include "families/attention.hpp"

namespace attnsmith::families::top_k {
namespace {

constexpr int kCtasPerSm = 6;

struct Kernel {
    DType index = DType::int32;  // of row_starts and row_ends
    int tile_q = 1;              // rows of a CTA

    template <class Self, class Visitor>
    static void visit(Self& self, Visitor& visitor) {
        visitor.index("Index", self.index);
        visitor.integer("tile_q", self.tile_q);
    }
};

class TopK final : public Family {
  public:
    std::string_view name() const override { return "top_k"; }
    Backend backend() const override { return Backend::cuda_core; }
    Role role() const override { return Role::top_k; }

    std::string kernel_name(const KernelConfig& config) const override {
        return "top_k fp32" + name_suffix(16, config.as<Kernel>().index);
    }

    Extent extent(const KernelConfig&, const LaunchContext& context) const override {
        return {.ctas = context.shape.q_tokens, .items = context.shape.q_tokens};
    }

    SourceParts source(const KernelConfig&) const override {
        return {.header = "top_k/top_k.cuh",
                .arguments = "TopKArguments",
                .shared_bytes = "sizeof(attnsmith::abi::TopKShared)"};
    }

    Bound bind(const KernelConfig&, const LaunchContext& context, const Binding& binding) const override {
        const auto& tensors = binding.operands.as<TopKTensors>();
        const abi::TopKArguments arguments{.scores = static_cast<const float*>(tensors.scores.data),
                                           .row_starts = tensors.row_starts.data,
                                           .row_ends = tensors.row_ends.data,
                                           .indices = static_cast<std::int32_t*>(tensors.indices.data),
                                           .status = static_cast<std::uint32_t*>(binding.workspace),
                                           .scores_row_stride = tensors.scores.strides[0],
                                           .indices_row_stride = tensors.indices.strides[0],
                                           .columns = static_cast<std::int32_t>(context.shape.max_kv_len),
                                           .k = static_cast<std::int32_t>(tensors.indices.shape[1])};
        return {ArgumentBlock(arguments)};
    }

  private:
    std::vector<Candidate> serving(const AttentionSpec& spec, const SmTraits& sm, const TuningTable&,
                                   std::vector<Refusal>&) const override {
        return {{{.family = &family(),
                  .sm = sm.sm,
                  .target = fmt::format("sm_{}", sm.sm),
                  .constants = Constants::of(Kernel{.index = spec.index_dtype}),
                  .threads = abi::kTopKThreads,
                  .ctas_per_sm = kCtasPerSm,
                  .shared_bytes = sizeof(abi::TopKShared)}}};
    }
};

}  // namespace

const Family& family() {
    static constexpr TopK kFamily;
    return kFamily;
}

}  // namespace attnsmith::families::top_k
