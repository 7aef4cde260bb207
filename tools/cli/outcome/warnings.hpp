// What a model's reader says that it does not know: listed with the plan, and an error under --strict.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnsmith/spec.hpp"

namespace attnsmith::cli {

// [{"kind", "field", "text"}]
nlohmann::ordered_json to_json(const std::vector<ModelWarning>& warnings);
// A line for each: "warning  FIELD: TEXT".
std::string list_text(const std::vector<ModelWarning>& warnings);

}  // namespace attnsmith::cli
