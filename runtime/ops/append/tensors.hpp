#pragma once

#include <cstdint>

#include "ops/operands.hpp"

namespace attnsmith::ops::append {

// As check_operands() and ops::check_workspace().
problem::BoundShape check_tensors(const problem::Problem& problem, const Operands& operands);
void check_workspace(const problem::Problem& problem, void* data, std::int64_t bytes,
                     const Operands& operands);

}  // namespace attnsmith::ops::append
