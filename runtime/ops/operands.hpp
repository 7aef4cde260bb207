// Checks of what a caller binds against the problem that was planned for. Pure: no device is touched.
#pragma once

#include <cstdint>

#include "problem/request/problem.hpp"
#include "problem/tensors/bound_shape.hpp"
#include "problem/tensors/operands.hpp"

namespace attnsmith::ops {

using problem::Operands;

// Throws InvalidRequest naming the tensor ("k.strides[2]", "o_states[3].shape[0]", "batch.kv_lens", ...),
// what it has and what is accepted; or "op", for operands of another op than the problem's.
problem::BoundShape check_operands(const problem::Problem& problem, const Operands& operands);

// Throws InvalidRequest naming `workspace.data` where its first `bytes` are memory of one of the tensors.
// REQUIRES: the operands were checked, and their op has a workspace.
void check_workspace(const problem::Problem& problem, void* data, std::int64_t bytes,
                     const Operands& operands);

}  // namespace attnsmith::ops
