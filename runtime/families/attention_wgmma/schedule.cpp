#include "families/attention_wgmma/schedule.hpp"

#include <algorithm>

#include "problem/ceil_div.hpp"

namespace attnsmith::families::attention_wgmma {
namespace {

using problem::ceil_div;

// `streams` have `tiles` each; `unequal`: these are not equally long.
void set_draws(Schedule& schedule, std::int64_t streams, std::int64_t tiles, bool unequal,
               std::int64_t ctas) {
    std::int64_t single_streams = streams;
    schedule.mixed_streams = 1;
    if (unequal && tiles > 0) {
        // Two single tiles for each CTA even out what the twos have left.
        single_streams = std::min(streams, ceil_div(2 * ctas, tiles));
        schedule.mixed_streams = std::max<std::int64_t>(1, single_streams);
        schedule.paired_draws = (streams - single_streams) * ceil_div(tiles, 2);
    }
    schedule.draws = schedule.paired_draws + single_streams * tiles;
    schedule.ctas = std::min(schedule.draws, ctas);
}

}  // namespace

Schedule schedule_of(const KernelConfig& kernel, const LaunchContext& context) {
    const problem::BoundShape& shape = context.shape;
    const HeadWork work = head_work(context.problem, shape.max_q_len, shape.max_kv_len);
    Schedule schedule{.tiling = tiling_of(kernel.tile_q(), work)};
    const QueryTiling& tiling = schedule.tiling;
    schedule.tiles = query_tiles(shape, tiling.group, tiling.rows);
    const std::int64_t heads = context.problem.spec.kv_heads * tiling.shares;
    schedule.items = schedule.tiles.all * heads * context.split.chunks();

    const bool is_uniform = schedule.tiles.of_each != 0;
    // A CTA stays where it is and goes on to further items.
    const std::int64_t resident = std::int64_t{context.device.sm_count} * kernel.ctas_per_sm;
    set_draws(schedule, heads * context.split.chunks() * (is_uniform ? shape.batch : 1),
              is_uniform ? schedule.tiles.of_each : schedule.tiles.all, work.bounds > 0 || !is_uniform,
              resident);
    return schedule;
}

}  // namespace attnsmith::families::attention_wgmma
