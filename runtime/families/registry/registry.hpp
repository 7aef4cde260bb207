// All families of kernels: whoever needs to know them asks here, and a new one is a line of registry.cpp.
#pragma once

#include <vector>

#include "families/family.hpp"

namespace attnsmith::families {

// In the order in which they are asked for candidates.
std::vector<const Family*> all_families();

// The backends that families have, each once.
std::vector<Backend> all_backends();

}  // namespace attnsmith::families
