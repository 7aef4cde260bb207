#include "families/tiled_attention.hpp"

#include "families/attention_arguments.hpp"

namespace attnsmith::families {

std::string TiledAttention::kernel_name(const KernelConfig& config) const {
    const auto kernel = config.as<TiledKernel>();
    return attention_name(backend(), kernel, kernel.paged ? "paged" : "contiguous", kernel.alignment);
}

double TiledAttention::clocks(const KernelConfig& kernel, const DeviceTraits& device, const Work& work,
                              std::int64_t splits) const {
    const std::int64_t query_tiles = problem::ceil_div(work.of_each.rows(), kernel.tile_q());
    return clocks_of(kernel, device, cta_work(work, splits, query_tiles, kernel.tile_kv(), device.sm_count));
}

Extent TiledAttention::extent(const KernelConfig& kernel, const LaunchContext& context) const {
    return grid_of_tiles(context, kernel.tile_q());
}

Bound TiledAttention::bind(const KernelConfig& kernel, const LaunchContext& context,
                           const Binding& binding) const {
    const std::int64_t tiles = query_tiles(context.shape, context.problem.group_size(), kernel.tile_q());
    return {ArgumentBlock(attention_arguments(context, std::get<AttentionBinding>(binding), tiles))};
}

}  // namespace attnsmith::families
