// Checks of numbers that requests of every op have.
#pragma once

#include <cstdint>
#include <string_view>

#include "attnsmith/spec.hpp"

namespace attnsmith::problem {

// Throws InvalidRequest, as the others do.
void check_range(std::string_view field, std::int64_t value, std::int64_t least, std::int64_t most);

// What is said of the sizes, of a spec whose heads were checked.
void check_sizes(const AttentionSpec& spec, const PlanSizes& sizes);

}  // namespace attnsmith::problem
