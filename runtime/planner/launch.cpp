#include "planner/launch.hpp"

#include <algorithm>

#include "abi/attention_arguments.h"
#include "abi/attention_cuts.h"
#include "families/attention_family.hpp"
#include "families/widening.hpp"
#include "ops/op.hpp"
#include "planner/split.hpp"
#include "problem/ceil_div.hpp"

namespace attnsmith::planner {
namespace {

using problem::ceil_div;

// What a share may leave among the partial results: the end of one query tile, which with absolute cuts is in
// pieces, and the start of another.
struct SharePlaces {
    std::int64_t count, rows;  // places of a share, and rows of each
};

SharePlaces share_places(const Plan& plan, const problem::BoundShape& shape) {
    const KernelConfig& attention = plan.kernel(Role::attention);
    const std::int64_t tile_q = attention.tile_q();
    if (!has_absolute_cuts(attention)) return {2, tile_q};
    return {abi::most_pieces(static_cast<std::int32_t>(shape.max_kv_len)) + 1,
            std::min(tile_q, plan.problem.group_size() * shape.max_q_len)};
}

std::int64_t rows_of_shares(const Plan& plan, const Split& shares, const problem::BoundShape& shape) {
    const SharePlaces places = share_places(plan, shape);
    return shares.parts * places.count * places.rows;
}

// As many shares as can have work.
Split with_work(const Plan& plan, const Split& shares, const problem::BoundShape& shape) {
    const KernelConfig& attention = plan.kernel(Role::attention);
    const int tile_kv = attention.tile_kv();
    const std::int64_t tiles = families::attention_of(attention).most_tiles(attention, plan.problem, shape);
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
    Split split = planned_split(plan.kernel(Role::attention), plan.device,
                                {.sequences_and_heads = sequences * plan.problem.spec.kv_heads,
                                 .of_each = families::head_work(plan.problem, longest, shape.max_kv_len)});
    if (split.policy != SplitPolicy::chunks) return split;
    const std::int64_t rows = std::max<std::int64_t>(1, shape.q_tokens * plan.problem.spec.q_heads);
    const std::int64_t most = rows_of_set(plan) / rows;
    if (most < 2) return {};
    const int tile_kv = plan.kernel(Role::attention).tile_kv();
    split.keys = std::max(split.keys, ceil_div(ceil_div(shape.max_kv_len, most), tile_kv) * tile_kv);
    return split;
}

// As planned, but with as many chunks as the keys have, or as many shares as can have work. Of a plan of a
// set, as planned for the bounds.
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

// Rows of partial results that a launch of this split has room for: enough for any smaller bounds, too.
std::int64_t partial_rows(const Plan& plan, const problem::BoundShape& shape, const Split& split) {
    const KernelConfig& attention = plan.kernel(Role::attention);
    const auto may_take = [&](SplitPolicy policy) {
        return plan.is_of_set ? families::takes(attention, policy) : split.policy == policy;
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

families::PartialRows partial_of(const Plan& plan, const problem::BoundShape& shape, const Split& split) {
    families::PartialRows partial{.rows = shape.q_tokens * plan.problem.spec.q_heads};
    if (!ops::op_traits(plan.problem.spec.op).divides_keys) return partial;
    if (split.policy == SplitPolicy::shares) {
        const SharePlaces places = share_places(plan, shape);
        partial.share_places = places.count;
        partial.share_rows = places.rows;
        partial.rows = split.parts * places.count * places.rows;
    }
    partial.room = partial_rows(plan, shape, split);
    return partial;
}

}  // namespace

const Plan& plan_for(const Plan& plan, const problem::BoundShape& shape) {
    if (plan.instead.empty() || families::has_room_to_widen(plan.problem.spec, shape)) return plan;
    return plan.instead.front();
}

std::int64_t workspace_bytes(const Plan& plan, const problem::BoundShape& shape) {
    const Plan& of_bounds = plan_for(plan, shape);
    const std::int64_t bytes = launch_of(plan, shape).workspace.bytes();
    return &of_bounds == &plan ? bytes : std::max(bytes, launch_of(of_bounds, shape).workspace.bytes());
}

families::LaunchContext context_of(const Plan& plan, const problem::BoundShape& shape, const Launch& launch) {
    return {plan.problem, shape, plan.device, launch.split, launch.partial, launch.workspace};
}

Launch launch_of(const Plan& plan, const problem::BoundShape& shape) {
    Launch launch;
    const ops::OpTraits& op = ops::op_traits(plan.problem.spec.op);
    if (op.divides_keys) launch.split = split_of(plan, shape);
    launch.partial = partial_of(plan, shape, launch.split);
    if (op.has_status) launch.workspace = families::WorkspaceLayout(abi::kZeroedBytes);
    const families::LaunchContext context = context_of(plan, shape, launch);
    for (const Step& step : plan.steps)
        step.kernel.family->add_regions(step.kernel, context, launch.workspace);
    for (const Step& step : plan.steps)
        launch.extents.push_back(step.kernel.family->extent(step.kernel, context));
    return launch;
}

void check_grid(const Plan& plan, const Launch& launch) {
    std::int64_t items = 0;
    for (const families::Extent& extent : launch.extents) items = std::max(items, extent.items);
    if (items <= kMostCtas) return;
    const AttentionSpec& spec = plan.problem.spec;
    const ops::OpTraits& op = ops::op_traits(spec.op);
    throw op.too_large({.items = items,
                        .most = kMostCtas,
                        .rows = launch.partial.rows,
                        .heads = spec.q_heads,
                        .tile_rows = plan.kernel(op.main).tile_q()});
}

}  // namespace attnsmith::planner
