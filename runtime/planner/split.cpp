#include "planner/split.hpp"

#include <algorithm>

#include "abi/attention_arguments.h"
#include "families/launch.hpp"
#include "problem/ceil_div.hpp"

namespace attnsmith::planner {
namespace {

using problem::ceil_div;

// A part shorter than this spends more on its start and its merge than on its keys.
constexpr std::int64_t kLeastKeys = 128;
// A split takes work of its own, and the estimates are no better than this: what gains less is not split.
// Where every SM has many CTAs anyway, a split's gain is the rounding of their number to whole ones of each
// SM.
constexpr double kLeastGain = 1.05;
// What few queries a sequence take longer, as a rule, where lengths are not those that are planned for and
// CTAs have no equal shares of them.
constexpr double kUnequalLengths = 1.1;

SplitChoice best_chunks(const KernelConfig& attention, const KernelConfig& merge, const DeviceTraits& device,
                        const families::Work& work, const SplitChoice& whole) {
    SplitChoice best = whole;
    const int tile_kv = attention.tile_kv();
    const std::int64_t tiles = ceil_div(work.of_each.keys, tile_kv);
    const std::int64_t least = ceil_div(kLeastKeys, tile_kv);
    std::int64_t previous = 0;
    // Candidates are chunk lengths, so that the chunk is a fact of the plan.
    for (std::int64_t wanted = 2; wanted <= kMostSplits; ++wanted) {
        const std::int64_t chunk_tiles = ceil_div(tiles, wanted);
        if (chunk_tiles < least || chunk_tiles == previous) continue;
        previous = chunk_tiles;
        const Split split{SplitPolicy::chunks, chunk_tiles * tile_kv, ceil_div(tiles, chunk_tiles)};
        if (split.parts < 2) continue;
        const double clocks = attention.family->clocks(attention, device, work, split) +
                              merge.family->clocks(merge, device, work, split);
        if (clocks < best.clocks) best = {split, clocks};
    }
    return best;
}

}  // namespace

Split shares_of(const KernelConfig& attention, const DeviceTraits& device) {
    const int tile_kv = attention.tile_kv();
    return {SplitPolicy::shares, ceil_div(kLeastKeys, tile_kv) * tile_kv,
            std::min(most_shares(attention), std::int64_t{device.sm_count} * attention.ctas_per_sm)};
}

SplitChoice best_split(const KernelConfig& attention, const KernelSet& set, const DeviceTraits& device,
                       const families::Work& work) {
    const auto takes = [&](SplitPolicy policy) { return attention.family->takes(attention, policy); };
    const SplitChoice whole{.clocks = attention.family->clocks(attention, device, work, {})};
    const auto is_worth_it = [&](const SplitChoice& choice) {
        return choice.clocks * kLeastGain < whole.clocks;
    };
    // Nobody else reads a tile's keys then, so that nothing is lost with the order of tiles.
    const bool is_one_tile = work.of_each.rows() <= attention.tile_q();
    if (takes(SplitPolicy::shares)) {
        const Split split = shares_of(attention, device);
        const SplitChoice shares{split, attention.family->clocks(attention, device, work, split)};
        return is_one_tile || !takes(SplitPolicy::none) || is_worth_it(shares) ? shares : whole;
    }
    SplitChoice best = whole;
    if (takes(SplitPolicy::chunks)) {
        best = best_chunks(attention, set.merge_of_splits(), device, work, whole);
        if (!is_worth_it(best)) best = whole;
    }
    if (is_one_tile) best.clocks *= kUnequalLengths;
    return best;
}

std::int64_t most_shares(const KernelConfig& attention) {
    return abi::kMostShares / attention.constants.integer("consumers", 1);  // each counts for itself
}

Split split_of(const Plan& plan, const problem::BoundShape& shape) {
    const Split& planned = plan.split;
    const KernelConfig& attention = plan.kernel(Role::attention);
    const int tile_kv = attention.tile_kv();
    if (planned.policy == SplitPolicy::chunks) {
        if (shape.max_kv_len <= planned.keys) return {};
        const std::int64_t least = ceil_div(ceil_div(shape.max_kv_len, kMostSplits), tile_kv);
        const std::int64_t chunk = std::max(planned.keys, least * tile_kv);
        return {SplitPolicy::chunks, chunk, ceil_div(shape.max_kv_len, chunk)};
    }
    if (planned.policy == SplitPolicy::shares) {
        const std::int64_t tiles =
            families::query_tiles(shape, plan.problem.group_size(), attention.tile_q()) *
            plan.problem.spec.kv_heads;
        if (tiles >= planned.parts) return planned;
        const std::int64_t units = tiles * std::max<std::int64_t>(1, ceil_div(shape.max_kv_len, tile_kv));
        return {SplitPolicy::shares, planned.keys,
                std::min(planned.parts, ceil_div(units, planned.keys / tile_kv))};
    }
    return {};
}

}  // namespace attnsmith::planner
