#include "planner/split.hpp"

#include <algorithm>
#include <optional>

#include "problem/ceil_div.hpp"

namespace attnsmith::planner {
namespace {

using problem::ceil_div;

// A split takes work of its own, and the estimates are no better than this: what gains less is not split.
// Where every SM has many CTAs anyway, a split's gain is the rounding of their number to whole ones of each
// SM.
constexpr double kLeastGain = 1.05;
// What few queries a sequence take longer, as a rule, where lengths are not those that are planned for and
// CTAs have no equal shares of them.
constexpr double kUnequalLengths = 1.1;

// Candidates are chunk lengths, so that the chunk is a fact of the plan. Those are passed over that could not
// win, or would gain too little.
SplitChoice best_chunks(const families::AttentionClocks& clocks, int tile_kv, const SplitChoice& whole,
                        double limit) {
    const std::int64_t tiles = clocks.key_tiles(), least = ceil_div(kLeastKeys, tile_kv);
    limit = std::min(limit, whole.clocks / kLeastGain);
    if (tiles < 2 || clocks.least() > limit) return whole;
    SplitChoice best = whole;
    const auto in_chunks = [&](std::int64_t parts) {
        const Split split{SplitPolicy::chunks, ceil_div(tiles, parts) * tile_kv, parts};
        return SplitChoice{split, clocks.of(split)};
    };
    // As many as fill the busiest SM's round take little time: most others need not be looked at.
    const std::int64_t full = std::min({clocks.most_of_round(2), kMostSplits, tiles / least});
    std::optional<SplitChoice> filling;
    if (full > 2) filling = in_chunks(full), limit = std::min(limit, filling->clocks);
    std::optional<std::int64_t> count = clocks.fewest_chunks(2, limit);
    while (count && *count <= kMostSplits) {
        const std::int64_t chunk_tiles = ceil_div(tiles, *count);
        if (chunk_tiles < least) break;
        const SplitChoice choice = filling && *count == full ? *filling : in_chunks(*count);
        if (choice.clocks < best.clocks) best = choice;
        if (chunk_tiles == 1) break;
        limit = std::min(limit, best.clocks);
        // The next length is made by the fewest chunks that are shorter.
        count = clocks.fewest_chunks(ceil_div(tiles, chunk_tiles - 1), limit);
    }
    return best;
}

}  // namespace

Split shares_of(const Contender& attention, int sm_count) {
    return {SplitPolicy::shares, attention.least_keys,
            std::min(attention.most_shares, std::int64_t{sm_count} * attention.cost.ctas_per_sm)};
}

SplitChoice best_split(const Contender& attention, int sm_count, const families::Work& work, double limit) {
    const families::AttentionClocks clocks(attention.cost, sm_count, work);
    if (const double least = clocks.least(); least > limit) return {.clocks = least};
    const auto is_worth_it = [&](const SplitChoice& choice, const SplitChoice& whole) {
        return choice.clocks * kLeastGain < whole.clocks;
    };
    // Nobody else reads a tile's keys then, so that nothing is lost with the order of tiles.
    const bool is_one_tile = work.of_each.rows() <= attention.cost.tile_q;
    if (attention.takes_shares) {
        const Split split = shares_of(attention, sm_count);
        const SplitChoice shares{split, clocks.of(split)};
        if (is_one_tile || !attention.takes_whole) return shares;
        const SplitChoice whole{.clocks = clocks.of({})};
        return is_worth_it(shares, whole) ? shares : whole;
    }
    const SplitChoice whole{.clocks = clocks.of({})};
    SplitChoice best = whole;
    if (attention.takes_chunks) {
        best = best_chunks(clocks, attention.cost.tile_kv, whole, limit);
        if (!is_worth_it(best, whole)) best = whole;
    }
    if (is_one_tile) best.clocks *= kUnequalLengths;
    return best;
}

Split planned_split(const KernelConfig& attention, const DeviceTraits& device, const families::Work& work) {
    return best_split(Contender(attention, device), device.sm_count, work).split;
}

}  // namespace attnsmith::planner
