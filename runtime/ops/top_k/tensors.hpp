#pragma once

#include "ops/operands.hpp"

namespace attnsmith::ops::top_k {

// As check_operands(): one sequence whose queries are the rows, and whose keys are the columns.
problem::BoundShape check_tensors(const problem::Problem& problem, const Operands& operands);
// As check_workspace() of the registry.
void check_workspace(const problem::Problem& problem, void* data, std::int64_t bytes,
                     const Operands& operands);

}  // namespace attnsmith::ops::top_k
