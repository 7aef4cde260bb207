// What a model's reader says that it does not know: listed with the plan, and an error under --strict.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnsmith/spec.hpp"
#include "cli/command.hpp"

namespace attnsmith::cli {

// --strict, of a command that takes --model.
void add_strict_flag(Command& command);

// [{"kind", "field", "text"}]
nlohmann::ordered_json to_json(const std::vector<ModelWarning>& warnings);
// A line for each: "warning  FIELD: TEXT".
std::string list_text(const std::vector<ModelWarning>& warnings);
// One line for all, where --strict is given and there are any; else empty. What is in it makes the exit code
// 1, after the work is done.
std::string strict_trouble(const Command& command, const std::vector<ModelWarning>& warnings);

}  // namespace attnsmith::cli
