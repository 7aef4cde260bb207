#include "families/tiled_attention.hpp"

#include "abi/attention_cuts.h"
#include "families/attention_arguments.hpp"
#include "problem/ceil_div.hpp"

namespace attnsmith::families {

std::int64_t packed_query_tiles(int tile_q, const HeadWork& work) {
    return problem::ceil_div(work.rows(), tile_q);
}

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

int TiledAttention::softmax_keys(const KernelConfig&) const { return abi::kSoftmaxKeys; }

std::string TiledAttention::kernel_name(const KernelConfig& config) const {
    const auto kernel = config.as<TiledKernel>();
    return attention_name(backend(), kernel, kernel.paged ? "paged" : "contiguous", kernel.alignment);
}

std::int64_t TiledAttention::most_tiles(const KernelConfig& kernel, const problem::Problem& problem,
                                        const problem::BoundShape& shape) const {
    return query_tiles(shape, problem.group_size(), kernel.tile_q()).all * problem.spec.kv_heads;
}

Extent TiledAttention::extent(const KernelConfig& kernel, const LaunchContext& context) const {
    Extent extent = grid_of_tiles(context, kernel.tile_q());
    if (context.split.policy == SplitPolicy::shares && extent.ctas > 0) extent.ctas = context.split.parts;
    return extent;
}

Bound TiledAttention::bind(const KernelConfig& kernel, const LaunchContext& context,
                           const Binding& binding) const {
    const QueryTiles tiles = query_tiles(context.shape, context.problem.group_size(), kernel.tile_q());
    abi::AttentionArguments arguments = attention_arguments(context, binding, tiles);
    set_share(context, kernel.tile_kv(), extent(kernel, context).items, arguments);
    return {.arguments = ArgumentBlock(arguments), .addresses = attention_addresses(context.problem.spec)};
}

}  // namespace attnsmith::families
