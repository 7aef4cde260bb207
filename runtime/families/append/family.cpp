#include "families/append/family.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "families/append/kernel.hpp"
#include "families/attention.hpp"

namespace attnsmith::families::append {
namespace {

constexpr int kWarps = 4;

// As many as there are registers for. Norms take some, and so do rotations whose halves are not one lane's,
// and scales that are computed.
int ctas_per_sm(const Kernel& kernel) {
    constexpr int kHeavyCtas = 4, kCtas = 6, kLightCtas = 8;
    constexpr int kWideColumns = 256;
    if (std::max({kernel.columns_q, kernel.columns_k, kernel.columns_v}) > kWideColumns) return kHeavyCtas;
    const auto is_light = [&](int columns) {
        return columns == 0 || kernel.rope != kHalf || abi::append_has_halves(columns, kernel.rotary_dim);
    };
    const int norms = kernel.norm_q || kernel.norm_k || kernel.norm_v ? 1 : 0;
    const int trades = is_light(kernel.columns_q) && is_light(kernel.columns_k) ? 0 : 1;
    const int takers = norms + trades + (kernel.v_scale_columns > 0 ? 1 : 0);
    return takers >= 2 ? kHeavyCtas : takers == 1 ? kCtas : kLightCtas;
}

std::string stored_name(DType dtype, int significand) {
    return significand == 0 ? std::string(attnsmith::to_string(dtype)) : significand == 3 ? "e4m3" : "e5m2";
}

class Append final : public Family {
  public:
    std::string_view name() const override { return "append"; }
    Backend backend() const override { return Backend::cuda_core; }
    Role role() const override { return Role::append; }

    std::string kernel_name(const KernelConfig& config) const override {
        const auto kernel = config.as<Kernel>();
        std::string text =
            fmt::format("append {} {} {} to {}", attnsmith::to_string(kernel.element), head_dims(kernel),
                        kernel.paged ? "paged" : "dense", stored_name(kernel.element, kernel.v_significand));
        if (kernel.v_scale_columns != 0)
            text += kernel.v_scale_columns < kernel.columns_v ? " block scales" : " row scales";
        if (kernel.q_significand != 0)
            text += fmt::format(" q {}", stored_name(kernel.element, kernel.q_significand));
        text += kernel.by_table ? " table" : " mapping";
        if (kernel.rope != 0)
            text += fmt::format(" rope {} {}{}", kernel.rope == kHalf ? "half" : "interleaved",
                                kernel.rotary_dim, kernel.frequencies ? " frequencies" : "");
        if (kernel.norm_q || kernel.norm_k || kernel.norm_v)
            text += fmt::format(" norm {}{}{}", kernel.norm_q ? "q" : "", kernel.norm_k ? "k" : "",
                                kernel.norm_v ? "v" : "");
        if (kernel.check_slots) text += " check_slots";
        return text + name_suffix(kernel.alignment, kernel.index);
    }

    Extent extent(const KernelConfig& config, const LaunchContext& context) const override {
        const std::int64_t warps = items(config, context);
        return {.ctas = problem::ceil_div(warps, kWarps), .items = warps};
    }

    SourceParts source(const KernelConfig&) const override {
        return {.header = "append/append.cuh", .arguments = "AppendArguments"};
    }

    Bound bind(const KernelConfig& config, const LaunchContext& context,
               const Binding& binding) const override {
        return {ArgumentBlock(append_arguments(config, context, binding))};
    }

  private:
    static std::string head_dims(const Kernel& kernel) {
        if (kernel.weighted_v) return fmt::format("{}+{}", kernel.columns_v, kernel.columns_k);
        return fmt::format("{}x{}", kernel.columns_k, kernel.columns_v);
    }

    std::vector<Candidate> serving(const AttentionSpec& spec, const SmTraits& sm, const TuningTable&,
                                   std::vector<Refusal>&) const override {
        Kernel kernel = kernel_of(spec);
        kernel.threads = kWarps * 32;
        kernel.tile_q = kWarps * rows_at_a_time(kernel.columns_v, 0);
        return {{{.family = &family(),
                  .sm = sm.sm,
                  .target = fmt::format("sm_{}", sm.sm),
                  .constants = Constants::of(kernel),
                  .threads = kernel.threads,
                  .ctas_per_sm = ctas_per_sm(kernel)}}};
    }
};

}  // namespace

const Family& family() {
    static constexpr Append kFamily;
    return kFamily;
}

}  // namespace attnsmith::families::append
