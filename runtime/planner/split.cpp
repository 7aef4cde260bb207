#include "planner/split.hpp"

#include <algorithm>
#include <optional>

#include "abi/attention_arguments.h"
#include "abi/attention_cuts.h"
#include "families/attention.hpp"
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

bool has_absolute_cuts(const KernelConfig& attention) {
    return attention.constants.as<families::AttentionConstants>().absolute_cuts;
}

// Where rows are cut at absolute positions, a share is divided nowhere else.
std::int64_t least_keys(const KernelConfig& attention) {
    const std::int64_t least = has_absolute_cuts(attention) ? abi::kLeastCut : kLeastKeys;
    return ceil_div(least, attention.tile_kv()) * attention.tile_kv();
}

std::int64_t rows_of_shares(const Plan& plan, const Split& shares, const problem::BoundShape& shape) {
    const SharePlaces places = share_places(plan, shape);
    return shares.parts * places.count * places.rows;
}

// As many shares as can have work.
Split with_work(const Plan& plan, const Split& shares, const problem::BoundShape& shape) {
    const KernelConfig& attention = plan.kernel(Role::attention);
    const int tile_kv = attention.tile_kv();
    const std::int64_t tiles = attention.family->most_tiles(attention, plan.problem, shape);
    if (tiles >= shares.parts) return shares;
    const std::int64_t units = tiles * std::max<std::int64_t>(1, ceil_div(shape.max_kv_len, tile_kv));
    return {SplitPolicy::shares, shares.keys, std::min(shares.parts, ceil_div(units, shares.keys / tile_kv))};
}

// Rows that the chunks of a set's kernel have together, at most: two tiles for each CTA that the device holds
// at once, as shares have. Chunks are there to fill a device, and a workspace that serves any sizes has to
// end somewhere.
std::int64_t rows_of_set(const Plan& plan) {
    const KernelConfig& attention = plan.kernel(Role::attention);
    return 2 * std::int64_t{plan.device.sm_count} * attention.ctas_per_sm * attention.tile_q();
}

// As planning would divide the keys, were the bounds the sizes.
Split split_of_bounds(const Plan& plan, const problem::BoundShape& shape) {
    const std::int64_t longest = std::max<std::int64_t>(1, shape.max_q_len);
    // A ragged batch counts for no more sequences than its queries fill, as long as the longest.
    const std::int64_t sequences = std::clamp<std::int64_t>(ceil_div(shape.q_tokens, longest), 1,
                                                            std::max<std::int64_t>(1, shape.batch));
    Split split =
        planned_split(plan, {.sequences_and_heads = sequences * plan.problem.spec.kv_heads,
                             .of_each = families::head_work(plan.problem, longest, shape.max_kv_len)});
    if (split.policy != SplitPolicy::chunks) return split;
    const std::int64_t rows = std::max<std::int64_t>(1, shape.q_tokens * plan.problem.spec.q_heads);
    const std::int64_t most = rows_of_set(plan) / rows;
    if (most < 2) return {};
    const int tile_kv = plan.kernel(Role::attention).tile_kv();
    split.keys = std::max(split.keys, ceil_div(ceil_div(shape.max_kv_len, most), tile_kv) * tile_kv);
    return split;
}

}  // namespace

Contender::Contender(const KernelConfig& attention, const SmTraits& sm)
    : cost(attention.family->cost(attention, sm)),
      takes_whole(attention.family->takes(attention, SplitPolicy::none)),
      takes_chunks(attention.family->takes(attention, SplitPolicy::chunks)),
      takes_shares(attention.family->takes(attention, SplitPolicy::shares)),
      least_keys(planner::least_keys(attention)),
      // Each warpgroup that multiplies counts for itself.
      most_shares(abi::kMostShares / attention.constants.integer("consumers", 1)) {}

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

Split planned_split(const Plan& plan, const families::Work& work) {
    const Contender attention(plan.kernel(Role::attention), plan.device);
    return best_split(attention, plan.device.sm_count, work).split;
}

Split split_of(const Plan& plan, const problem::BoundShape& shape) {
    const Split planned = plan.is_of_set ? split_of_bounds(plan, shape) : plan.split;
    const KernelConfig& attention = plan.kernel(Role::attention);
    const int tile_kv = attention.tile_kv();
    if (planned.policy == SplitPolicy::chunks) {
        if (shape.max_kv_len <= planned.keys) return {};
        const std::int64_t least = ceil_div(ceil_div(shape.max_kv_len, kMostSplits), tile_kv);
        const std::int64_t chunk = std::max(planned.keys, least * tile_kv);
        return {SplitPolicy::chunks, chunk, ceil_div(shape.max_kv_len, chunk)};
    }
    if (planned.policy == SplitPolicy::shares) return with_work(plan, planned, shape);
    return {};
}

std::int64_t partial_rows(const Plan& plan, const problem::BoundShape& shape, const Split& split) {
    const KernelConfig& attention = plan.kernel(Role::attention);
    const auto may_take = [&](SplitPolicy policy) {
        return plan.is_of_set ? attention.family->takes(attention, policy) : split.policy == policy;
    };
    if (may_take(SplitPolicy::chunks)) {
        // A shorter bound may have more chunks, where the chunk has grown to keep within the most.
        const std::int64_t least = plan.is_of_set ? least_keys(attention) : plan.split.keys;
        const std::int64_t most = std::min(kMostSplits, ceil_div(shape.max_kv_len, least)) * shape.q_tokens *
                                  plan.problem.spec.q_heads;
        return plan.is_of_set ? std::min(most, rows_of_set(plan)) : most;
    }
    if (!may_take(SplitPolicy::shares)) return 0;
    const Split shares =
        plan.is_of_set ? shares_of(Contender(attention, plan.device), plan.device.sm_count) : plan.split;
    return rows_of_shares(plan, with_work(plan, shares, shape), shape);
}

SharePlaces share_places(const Plan& plan, const problem::BoundShape& shape) {
    const KernelConfig& attention = plan.kernel(Role::attention);
    const std::int64_t tile_q = attention.tile_q();
    if (!has_absolute_cuts(attention)) return {2, tile_q};
    return {abi::most_pieces(static_cast<std::int32_t>(shape.max_kv_len)) + 1,
            std::min(tile_q, plan.problem.group_size() * shape.max_q_len)};
}

}  // namespace attnsmith::planner
