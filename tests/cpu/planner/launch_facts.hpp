// A launch of an attention's plan by its numbers: the planner's, the families' and the schedule of wgmma's
// persistent CTAs.
#pragma once

#include "families/attention_wgmma/family.hpp"
#include "families/attention_wgmma/schedule.hpp"
#include "planner/launch.hpp"
#include "planner/plan.hpp"

namespace attnsmith::test {

struct LaunchFacts {
    families::Split split{};
    std::int64_t rows = 0, workspace_bytes = 0;
    std::int64_t items = 0, grid = 0, kv_head_shares = 1;  // of the attention
    std::int64_t tiles = 0;                                // of a KV head's part, over all sequences
    std::int64_t merge_grid = 0;
    families::attention_wgmma::Schedule schedule{};  // of wgmma
};

inline LaunchFacts launch_facts(const planner::Plan& plan, const problem::BoundShape& shape) {
    const planner::Launch launch = planner::launch_of(plan, shape);
    LaunchFacts facts{
        .split = launch.split, .rows = launch.partial.rows, .workspace_bytes = launch.workspace.bytes()};
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
        const families::KernelConfig& kernel = plan.steps[i].kernel;
        const families::Extent& extent = launch.extents[i];
        if (plan.steps[i].role() != planner::Role::attention) {
            facts.merge_grid = extent.ctas;
            continue;
        }
        facts.items = extent.items, facts.grid = extent.ctas, facts.kv_head_shares = extent.kv_head_shares;
        facts.tiles =
            extent.items / (plan.problem.spec.kv_heads * extent.kv_head_shares * launch.split.chunks());
        if (kernel.backend() == families::Backend::wgmma)
            facts.schedule =
                families::attention_wgmma::schedule_of(kernel, planner::context_of(plan, shape, launch));
    }
    return facts;
}

// The kernel with a query tile of so many rows, whatever the table says.
inline void set_tile_q(families::KernelConfig& kernel, int rows) {
    auto constants = kernel.as<families::attention_wgmma::Kernel>();
    constants.tile_q = rows;
    kernel.set(constants);
}

}  // namespace attnsmith::test
