// The launch of a plan for the bounds of a call: how its keys are divided, what its workspace holds, how many
// CTAs it takes.
#pragma once

#include <cstdint>
#include <vector>

#include "families/family.hpp"
#include "planner/plan.hpp"
#include "problem/tensors/bound_shape.hpp"

namespace attnsmith::planner {

// CTAs of a grid's x.
inline constexpr std::int64_t kMostCtas = (std::int64_t{1} << 31) - 1;

// The launch of a plan for tensors with given bounds.
struct Launch {
    Split split{};  // its chunks are as the plan's, longer where there would be too many
    families::PartialRows partial{};
    families::WorkspaceLayout workspace{};
    std::vector<families::Extent> extents{};  // of each step
};

// The plan that is launched for these bounds: this one, or what it has instead.
const Plan& plan_for(const Plan& plan, const problem::BoundShape& shape);

// Bytes of a workspace that serves these bounds and any smaller ones, of which others may take the other
// plan.
std::int64_t workspace_bytes(const Plan& plan, const problem::BoundShape& shape);

// Any sizes: whether the items and the grids can be counted in 32 bits is for check_grid(), which throws
// InvalidRequest.
Launch launch_of(const Plan& plan, const problem::BoundShape& shape);
void check_grid(const Plan& plan, const Launch& launch);

// What the families are told of the launch. The result refers to the arguments.
families::LaunchContext context_of(const Plan& plan, const problem::BoundShape& shape, const Launch& launch);

}  // namespace attnsmith::planner
