#include "families/widen_keys/family.hpp"

#include <fmt/format.h>

#include "abi/widen_arguments.h"
#include "families/attention.hpp"
#include "families/attention_arguments.hpp"
#include "families/widening.hpp"
#include "problem/ceil_div.hpp"

namespace attnsmith::families::widen_keys {
namespace {

constexpr int kKeys = 64;  // of a CTA
constexpr int kThreads = 256;
constexpr int kCtasPerSm = 8;

struct Kernel {
    DType key_value = DType::bf16, index = DType::int32;
    int head_dim_qk = 0, head_dim_vo = 0;
    int tile_q = 0;
    bool paged = false;

    template <class Self, class Visitor>
    static void visit(Self& self, Visitor& visitor) {
        visitor.element("KeyValue", self.key_value);
        visitor.index("Index", self.index);
        visitor.integer("head_dim_qk", self.head_dim_qk);
        visitor.integer("head_dim_vo", self.head_dim_vo);
        visitor.integer("tile_q", self.tile_q);
        visitor.flag("paged", self.paged);
    }
};

std::int64_t blocks_of(const LaunchContext& context) {
    return problem::ceil_div(context.shape.max_kv_len, kKeys);
}

class WidenKeys final : public Family {
  public:
    std::string_view name() const override { return "widen_keys"; }
    Backend backend() const override { return Backend::cuda_core; }
    Role role() const override { return Role::widen; }

    std::string kernel_name(const KernelConfig& config) const override {
        const auto kernel = config.as<Kernel>();
        return fmt::format("widen {} {}x{}{}{}", attnsmith::to_string(kernel.key_value), kernel.head_dim_qk,
                           kernel.head_dim_vo, kernel.paged ? " paged" : "", name_suffix(16, kernel.index));
    }

    Extent extent(const KernelConfig&, const LaunchContext& context) const override {
        const problem::BoundShape& shape = context.shape;
        if (shape.max_q_len == 0) return {};
        const std::int64_t ctas = shape.batch * context.problem.spec.kv_heads * blocks_of(context);
        return {.ctas = ctas, .items = ctas};
    }

    void add_regions(const KernelConfig&, const LaunchContext& context,
                     WorkspaceLayout& workspace) const override {
        const AttentionSpec& spec = context.problem.spec;
        if (!has_room_to_widen(spec, context.shape)) {
            // Such bounds have another plan; this is the room of the largest smaller ones, K and V rounded
            // each.
            workspace.add(Region::widened_k, kMostWidenedBytes + WorkspaceLayout::kAlignment);
            return;
        }
        workspace.add(Region::widened_k, widened_bytes(spec, context.shape, spec.head_dim_qk));
        workspace.add(Region::widened_v, widened_bytes(spec, context.shape, spec.head_dim_vo));
    }

    SourceParts source(const KernelConfig&) const override {
        return {.header = "attention/widen.cuh",
                .arguments = "WidenArguments",
                .shared_bytes = "attnsmith::Config::tile_q * attnsmith::abi::kWidenedPlaceBytes"};
    }

    Bound bind(const KernelConfig&, const LaunchContext& context, const Binding& binding) const override {
        const auto region = [&](Region name) { return context.workspace.address(binding.workspace, name); };
        static_assert(offsetof(abi::WidenArguments, attention) == 0);  // as attention_addresses() has it
        const abi::WidenArguments arguments{.attention = attention_arguments(context, binding, {}),
                                            .k = region(Region::widened_k),
                                            .v = region(Region::widened_v),
                                            .blocks = static_cast<std::int32_t>(blocks_of(context))};
        return {.arguments = ArgumentBlock(arguments),
                .addresses = attention_addresses(context.problem.spec)};
    }

  private:
    std::vector<Candidate> serving(const AttentionSpec& spec, const SmTraits& sm, const TuningTable&,
                                   std::vector<Refusal>&) const override {
        const Kernel kernel{.key_value = problem::kv_dtype(spec),
                            .index = spec.index_dtype,
                            .head_dim_qk = static_cast<int>(spec.head_dim_qk),
                            .head_dim_vo = static_cast<int>(spec.head_dim_vo),
                            .tile_q = kKeys,
                            .paged = spec.kv == KvStorage::paged};
        return {{{.family = &family(),
                  .sm = sm.sm,
                  .target = fmt::format("sm_{}", sm.sm),
                  .constants = Constants::of(kernel),
                  .threads = kThreads,
                  .ctas_per_sm = kCtasPerSm,
                  .shared_bytes = kKeys * abi::kWidenedPlaceBytes}}};
    }
};

}  // namespace

const Family& family() {
    static constexpr WidenKeys kFamily;
    return kFamily;
}

}  // namespace attnsmith::families::widen_keys
