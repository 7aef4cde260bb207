#include "families/attention_wgmma/family.hpp"

#include "families/attention_wgmma/kernel.hpp"
#include "families/attention_wgmma/schedule.hpp"

namespace attnsmith::families::attention_wgmma {

std::string Wgmma::kernel_name(const KernelConfig& kernel) const {
    const auto constants = kernel.as<Kernel>();
    constexpr int kAlignment = 16;  // it has no other
    return attention_name(backend(), constants,
                          constants.gather  ? "gather"
                          : constants.paged ? "paged"
                                            : "contiguous",
                          kAlignment);
}

int Wgmma::producer_warps() const { return kProducerWarps; }

Extent Wgmma::extent(const KernelConfig& kernel, const LaunchContext& context) const {
    const Schedule schedule = schedule_of(kernel, context);
    return {.ctas = schedule.ctas, .items = schedule.items, .kv_head_shares = schedule.tiling.shares};
}

}  // namespace attnsmith::families::attention_wgmma
