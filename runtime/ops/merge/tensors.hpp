#pragma once

#include "ops/operands.hpp"

namespace attnsmith::ops::merge {

// As check_operands(): one sequence whose queries are the tokens.
problem::BoundShape check_tensors(const problem::Problem& problem, const Operands& operands);

}  // namespace attnsmith::ops::merge
