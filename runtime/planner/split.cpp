#include "planner/split.hpp"

#include <algorithm>

#include "problem/ceil_div.hpp"

namespace attnsmith::planner {
namespace {

using problem::ceil_div;

// A chunk shorter than this spends more on its start and its merge than on its keys.
constexpr std::int64_t kLeastChunkKeys = 128;
// A split takes a second kernel and a workspace that grows with the queries, and the estimates are no better
// than this: what gains less is not split. Where every SM has many CTAs anyway, a split's gain is the
// rounding of their number to whole ones of each SM.
constexpr double kLeastGain = 1.05;

}  // namespace

// Candidates are chunk lengths, so that the chunk is a fact of the plan.
SplitChoice best_split(const KernelConfig& attention, const KernelConfig& merge, const DeviceTraits& device,
                       const families::Work& work) {
    const auto clocks_of = [&](std::int64_t splits) {
        const double clocks = attention.family->clocks(attention, device, work, splits);
        return splits > 1 ? clocks + merge.family->clocks(merge, device, work, splits) : clocks;
    };
    const SplitChoice whole{.clocks = clocks_of(1)};
    SplitChoice best = whole;
    const int tile_kv = attention.tile_kv();
    const std::int64_t tiles = ceil_div(work.of_each.keys, tile_kv);
    const std::int64_t least = ceil_div(kLeastChunkKeys, tile_kv);
    std::int64_t previous = 0;
    for (std::int64_t wanted = 2; wanted <= kMostSplits; ++wanted) {
        const std::int64_t chunk_tiles = ceil_div(tiles, wanted);
        if (chunk_tiles < least || chunk_tiles == previous) continue;
        previous = chunk_tiles;
        const std::int64_t splits = ceil_div(tiles, chunk_tiles);
        if (splits < 2) continue;
        const double clocks = clocks_of(splits);
        if (clocks < best.clocks) best = {{chunk_tiles * tile_kv, splits}, clocks};
    }
    return best.clocks * kLeastGain < whole.clocks ? best : whole;
}

families::Split split_of(const SplitPlan& split, int tile_kv, std::int64_t max_kv_len) {
    if (split.chunk == 0 || max_kv_len <= split.chunk) return {};
    const std::int64_t least = ceil_div(ceil_div(max_kv_len, kMostSplits), tile_kv);
    const std::int64_t chunk = std::max(split.chunk, least * tile_kv);
    return {.splits = ceil_div(max_kv_len, chunk), .chunk = chunk};
}

}  // namespace attnsmith::planner
