#include "families/merge_states/family.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "abi/merge_arguments.h"
#include "families/attention.hpp"

namespace attnsmith::families::merge_states {
namespace {

constexpr int kWarps = 4;
// 1024 threads with four 16-byte loads under way each: twice what hides the latency of device memory.
constexpr int kCtasPerSm = 8;
constexpr int kElementsPerLane = 8;  // 16 bytes

struct Kernel {
    DType output = DType::bf16;  // of the states, too
    int head_dim_vo = 0;
    int tile_q = 0;  // rows [token][head] of a CTA
    int threads = 0;
    int alignment = 16;

    template <class Self, class Visitor>
    static void visit(Self& self, Visitor& visitor) {
        visitor.element("Output", self.output);
        visitor.integer("head_dim_vo", self.head_dim_vo);
        visitor.integer("tile_q", self.tile_q);
        visitor.integer("threads", self.threads);
        visitor.integer("alignment", self.alignment);
    }
};

// Lanes that share a row, of one warp: a power of two, so that rows tile it.
int lanes_per_row(std::int64_t head_dim_vo) {
    constexpr int kLanes = 32;
    return std::min(
        kLanes, static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(head_dim_vo) / kElementsPerLane)));
}

std::int64_t merged_rows(const LaunchContext& context) {
    return context.shape.q_tokens * context.problem.spec.q_heads;
}

class MergeStates final : public Family {
  public:
    std::string_view name() const override { return "merge_states"; }
    Backend backend() const override { return Backend::cuda_core; }
    Role role() const override { return Role::merge_states; }

    std::string kernel_name(const KernelConfig& config) const override {
        const auto kernel = config.as<Kernel>();
        return fmt::format("merge states {} {}{}", attnsmith::to_string(kernel.output), kernel.head_dim_vo,
                           name_suffix(kernel.alignment, DType::int32));
    }

    // One grid over all rows [token][head]; nothing without tokens.
    Extent extent(const KernelConfig& kernel, const LaunchContext& context) const override {
        const std::int64_t ctas = problem::ceil_div(merged_rows(context), kernel.tile_q());
        return {.ctas = ctas, .items = ctas};
    }

    SourceParts source(const KernelConfig&) const override {
        return {.header = "attention/merge/states.cuh", .arguments = "MergeArguments"};
    }

    Bound bind(const KernelConfig&, const LaunchContext& context, const Binding& binding) const override {
        const MergeTensors& tensors = binding.operands.as<MergeTensors>();
        static_assert(abi::kMaxMergeStates == MergeTensors::kMaxStates);
        abi::MergeArguments a{};
        for (std::size_t i = 0; i < tensors.o_states.size(); ++i) {
            const Tensor &o = tensors.o_states[i], &lse = tensors.lse_states[i];
            a.state[i] = {o.data,         static_cast<const float*>(lse.data),
                          o.strides[0],   o.strides[1],
                          lse.strides[0], lse.strides[1]};
        }
        a.o = tensors.o.data;
        a.lse = static_cast<float*>(tensors.lse.data);
        a.o_token_stride = tensors.o.strides[0], a.o_head_stride = tensors.o.strides[1];
        a.lse_token_stride = tensors.lse.strides[0], a.lse_head_stride = tensors.lse.strides[1];
        a.rows = merged_rows(context);
        a.heads = static_cast<std::int32_t>(context.problem.spec.q_heads);
        a.states = static_cast<std::int32_t>(tensors.o_states.size());
        return {ArgumentBlock(a)};
    }

  private:
    std::vector<Candidate> serving(const AttentionSpec& spec, const SmTraits& sm, const TuningTable&,
                                   std::vector<Refusal>&) const override {
        const Kernel kernel{.output = spec.dtype,
                            .head_dim_vo = static_cast<int>(spec.head_dim_vo),
                            .tile_q = kWarps * 32 / lanes_per_row(spec.head_dim_vo),
                            .threads = kWarps * 32,
                            .alignment = spec.alignment};
        return {{{.family = &family(),
                  .sm = sm.sm,
                  .target = fmt::format("sm_{}", sm.sm),
                  .constants = Constants::of(kernel),
                  .threads = kernel.threads,
                  .ctas_per_sm = kCtasPerSm}}};
    }
};

}  // namespace

const Family& family() {
    static constexpr MergeStates kFamily;
    return kFamily;
}

}  // namespace attnsmith::families::merge_states
