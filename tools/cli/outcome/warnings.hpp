// What a model's reader says that it does not know: listed with the plan, and an error under --strict.
#pragma once

#include <string>
#include <vector>

#include "attnsmith/spec.hpp"

namespace attnsmith::cli {

// A line for each: "warning  FIELD: TEXT".
std::string list_text(const std::vector<ModelWarning>& warnings);

}  // namespace attnsmith::cli
