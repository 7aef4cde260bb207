#include "families/attention_wgmma/family.hpp"

#include "families/attention_wgmma/kernel.hpp"
#include "families/attention_wgmma/schedule.hpp"

namespace attnsmith::families::attention_wgmma {
namespace {

class Wgmma final : public AttentionFamily {
  public:
    std::string_view name() const override { return "attention_wgmma"; }
    Backend backend() const override { return Backend::wgmma; }
    bool takes(const KernelConfig& kernel, SplitPolicy policy) const override {
        const auto constants = kernel.as<Kernel>();
        if (policy == SplitPolicy::chunks && constants.absolute_cuts) return false;
        return (policy == SplitPolicy::shares) == constants.shares;
    }

    bool needs(const KernelConfig& kernel, Role other) const override {
        return other == Role::widen ? kernel.as<Kernel>().reads_workspace()
                                    : AttentionFamily::needs(kernel, other);
    }

    int softmax_keys(const KernelConfig& kernel) const override { return kernel.tile_kv(); }

    std::optional<std::string> refusal(const AttentionSpec& spec, const SmTraits& sm) const override {
        return attention_wgmma::refusal(spec, sm);
    }
    std::optional<Phase> tuned_phase() const override { return Phase::prefill; }
    std::vector<KernelConfig> tunable(const AttentionSpec& spec, const SmTraits& sm) const override {
        return attention_wgmma::tunable(spec, sm);
    }

    std::string kernel_name(const KernelConfig& config) const override {
        const auto kernel = config.as<Kernel>();
        constexpr int kAlignment = 16;  // it has no other
        const std::string name = attention_name(backend(), kernel,
                                                kernel.reads_workspace() ? "widened"
                                                : kernel.gather          ? "gather"
                                                : kernel.paged           ? "paged"
                                                                         : "contiguous",
                                                kAlignment);
        // Elsewhere the tile tells.
        return kernel.is_wide() && !kernel.latent && kernel.shares ? name + " shares" : name;
    }
    int producer_warps(const KernelConfig& kernel) const override {
        return kernel.as<Kernel>().producer_warps();
    }

    std::optional<int> most_rows_of_other_families(const AttentionSpec& spec,
                                                   std::span<const Candidate> own) const override {
        return attention_wgmma::most_rows_of_other_families(spec, own);
    }
    AttentionCost cost(const KernelConfig& kernel, const SmTraits& sm) const override {
        return attention_wgmma::cost_of(kernel.as<Kernel>(), sm, kernel.ctas_per_sm);
    }

    std::int64_t most_tiles(const KernelConfig& kernel, const problem::Problem& problem,
                            const problem::BoundShape& shape) const override {
        const QueryTiling tiling = largest_parts(kernel.tile_q(), problem.group_size());
        return query_tiles(shape, tiling.group, tiling.rows).all * tiling.shares * problem.spec.kv_heads;
    }
    Extent extent(const KernelConfig& kernel, const LaunchContext& context) const override {
        const Schedule schedule = schedule_of(kernel, context);
        const bool shares = context.split.policy == SplitPolicy::shares && schedule.items > 0;
        return {.ctas = shares ? context.split.parts : schedule.ctas,
                .items = schedule.items,
                .kv_head_shares = schedule.tiling.shares};
    }

    SourceParts source(const KernelConfig& kernel) const override { return attention_wgmma::source(kernel); }

    Bound bind(const KernelConfig& kernel, const LaunchContext& context,
               const Binding& binding) const override {
        return attention_wgmma::bind(kernel, context, binding);
    }

  private:
    std::vector<Candidate> serving(const AttentionSpec& spec, const SmTraits& sm, const TuningTable& tuning,
                                   std::vector<Refusal>& rejected) const override {
        return attention_wgmma::candidates(spec, sm, tuning, rejected);
    }
};

}  // namespace

const Family& family() {
    static constexpr Wgmma kFamily;
    return kFamily;
}

}  // namespace attnsmith::families::attention_wgmma
