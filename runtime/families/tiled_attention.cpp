#include "families/tiled_attention.hpp"

#include <algorithm>
#include <cmath>

#include "families/attention_arguments.hpp"
#include "families/cost.hpp"

namespace attnsmith::families {

// The pieces of rows that are cut at absolute positions have places of their own in the workspace: it would
// have to be large for tiles of many rows, of which there are enough anyway.
bool TiledAttention::takes(const KernelConfig& kernel, SplitPolicy policy) const {
    constexpr int kMostRows = 32;
    switch (policy) {
        case SplitPolicy::none:
            return true;
        case SplitPolicy::shares:
            return !kernel.as<AttentionConstants>().absolute_cuts || kernel.tile_q() <= kMostRows;
        case SplitPolicy::chunks:
            return false;
    }
    return false;
}

std::string TiledAttention::kernel_name(const KernelConfig& config) const {
    const auto kernel = config.as<TiledKernel>();
    return attention_name(backend(), kernel, kernel.paged ? "paged" : "contiguous", kernel.alignment);
}

double TiledAttention::clocks(const KernelConfig& kernel, const DeviceTraits& device, const Work& work,
                              const Split& split) const {
    const std::int64_t query_tiles = problem::ceil_div(work.of_each.rows(), kernel.tile_q());
    CtaWork ctas = cta_work(work, 1, query_tiles, kernel.tile_kv(), device.sm_count);
    if (split.policy == SplitPolicy::none) return clocks_of(kernel, device, ctas);
    const ShareWork share = share_work(work, split, query_tiles, kernel.as<AttentionConstants>());
    ctas.key_tiles = static_cast<std::int64_t>(share.units);
    ctas.on_busiest = std::ceil(share.ctas / device.sm_count);
    return clocks_of(kernel, device, ctas) + kStartClocks * (share.tiles - 1) + share.join_clocks;
}

Extent TiledAttention::extent(const KernelConfig& kernel, const LaunchContext& context) const {
    Extent extent = grid_of_tiles(context, kernel.tile_q());
    if (context.split.policy == SplitPolicy::shares && extent.ctas > 0) extent.ctas = context.split.parts;
    return extent;
}

Bound TiledAttention::bind(const KernelConfig& kernel, const LaunchContext& context,
                           const Binding& binding) const {
    const std::int64_t tiles = query_tiles(context.shape, context.problem.group_size(), kernel.tile_q());
    abi::AttentionArguments arguments =
        attention_arguments(context, std::get<AttentionBinding>(binding), tiles);
    set_share(context, kernel.tile_kv(), extent(kernel, context).items, arguments);
    return {.arguments = ArgumentBlock(arguments), .addresses = attention_addresses()};
}

}  // namespace attnsmith::families
