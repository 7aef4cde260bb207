// The kernel of op merge: joins attention states over disjoint keys.
#pragma once

#include "planner/plan.hpp"

namespace attnsmith::planner {

KernelConfig merge_states_kernel(const AttentionSpec& spec, const DeviceTraits& device);

// One grid over all rows [token][head]; nothing without tokens.
Launch merge_states_launch(const KernelConfig& kernel, const AttentionSpec& spec,
                           const problem::BoundShape& shape);

}  // namespace attnsmith::planner
