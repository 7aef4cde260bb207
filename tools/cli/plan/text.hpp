// A plan for people, from its JSON: whatever it shows, --json says too.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace attnsmith::cli {

// Why the other candidates were not chosen: all reasons, or only how many there are.
enum class Reasons { all, count, none };

std::string plan_text(const nlohmann::ordered_json& plan, Reasons reasons);

}  // namespace attnsmith::cli
