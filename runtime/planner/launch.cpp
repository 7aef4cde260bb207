#include <fmt/format.h>

#include <algorithm>

#include "abi/attention_arguments.h"
#include "abi/widen_arguments.h"
#include "planner/plan.hpp"
#include "planner/split.hpp"

namespace attnsmith::planner {
namespace {

using problem::ceil_div;

// Behind the zeroed bytes the partial results: of as many chunks as any smaller bounds have, or those of each
// share. Op append has the status alone; op merge needs none.
families::WorkspaceLayout workspace_of(const Plan& plan, const problem::BoundShape& shape,
                                       const Split& split) {
    const AttentionSpec& spec = plan.problem.spec;
    families::WorkspaceLayout layout{.rows = shape.q_tokens * spec.q_heads};
    if (plan.find(Role::append) != nullptr) layout.bytes = abi::kZeroedBytes;
    if (plan.find(Role::attention) == nullptr) return layout;
    layout.partial_o_offset = layout.partial_ml_offset = layout.bytes = abi::kZeroedBytes;
    if (split.policy == SplitPolicy::shares) {
        const SharePlaces places = share_places(plan, shape);
        layout.share_places = places.count;
        layout.share_rows = places.rows;
        layout.rows = split.parts * places.count * places.rows;
    }
    const auto take = [&](std::int64_t bytes) {
        const std::int64_t offset = layout.bytes;
        layout.bytes += ceil_div(bytes, 256) * 256;
        return offset;
    };
    if (const std::int64_t rows = partial_rows(plan, shape, split); rows > 0) {
        layout.partial_o_offset = take(rows * problem::value_dim(spec) * 4);
        layout.partial_ml_offset = take(rows * 8);
    }
    if (plan.find(Role::widen) == nullptr) return layout;
    if (!has_room_to_widen(spec, shape)) {  // for smaller bounds, since these have another plan
        constexpr std::int64_t kRounding = 256;
        take(kMostWidenedBytes + kRounding);
        return layout;
    }
    const std::int64_t rows = families::widened_rows(spec, shape);
    layout.widened_k_offset = take(rows * spec.head_dim_qk * abi::kWidenedBytes);
    layout.widened_v_offset = take(rows * spec.head_dim_vo * abi::kWidenedBytes);
    return layout;
}

}  // namespace

const Plan& plan_for(const Plan& plan, const problem::BoundShape& shape) {
    if (plan.instead.empty() || has_room_to_widen(plan.problem.spec, shape)) return plan;
    return plan.instead.front();
}

std::int64_t workspace_bytes(const Plan& plan, const problem::BoundShape& shape) {
    const Plan& of_bounds = plan_for(plan, shape);
    const std::int64_t bytes = launch_of(plan, shape).workspace.bytes;
    return &of_bounds == &plan ? bytes : std::max(bytes, launch_of(of_bounds, shape).workspace.bytes);
}

families::LaunchContext context_of(const Plan& plan, const problem::BoundShape& shape, const Launch& launch) {
    return {plan.problem, shape, plan.device, launch.split, launch.workspace};
}

Launch launch_of(const Plan& plan, const problem::BoundShape& shape) {
    Launch launch;
    if (plan.find(Role::attention) != nullptr) launch.split = split_of(plan, shape);
    launch.workspace = workspace_of(plan, shape, launch.split);
    const families::LaunchContext context = context_of(plan, shape, launch);
    for (const Step& step : plan.steps)
        launch.extents.push_back(step.kernel.family->extent(step.kernel, context));
    return launch;
}

void check_grid(const Plan& plan, const Launch& launch) {
    std::int64_t items = 0;
    for (const families::Extent& extent : launch.extents) items = std::max(items, extent.items);
    if (items <= kMostCtas) return;
    const std::int64_t heads = plan.problem.spec.q_heads;
    if (const Step* merge = plan.find(Role::merge_states)) {
        const std::int64_t rows = merge->kernel.tile_q();
        throw InvalidRequest(
            "q_tokens", std::to_string(launch.workspace.rows / heads),
            fmt::format("at most {} in one merge of {} heads", kMostCtas * rows / heads, heads));
    }
    if (plan.find(Role::append) != nullptr)
        throw InvalidRequest("q", fmt::format("tokens that need {} warps", items),
                             fmt::format("tokens that need at most {}; divide the tokens", kMostCtas));
    throw InvalidRequest(
        "batch", fmt::format("bounds that need {} CTAs", items),
        fmt::format("sequences and lengths that need at most {} CTAs; divide the batch", kMostCtas));
}

}  // namespace attnsmith::planner
