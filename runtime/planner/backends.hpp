// What the families of kernels compute with.
#pragma once

#include <vector>

#include "planner/kernel_config.hpp"

namespace attnsmith::planner {

// Those that any family has, each once.
std::vector<Backend> backends();

}  // namespace attnsmith::planner
