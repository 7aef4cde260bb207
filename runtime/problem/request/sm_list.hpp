// The compute capabilities of a request: `sm`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace attnsmith::problem {

// Those that a value of `sm` names, each once: an SM, "80,90a", "all", a list of these; none of null and
// "native". Throws InvalidRequest.
std::vector<int> sms_of(const nlohmann::json& value);

// A sentence for each suffix in a value of `sm` that is taken but says nothing, as in "100f". Throws
// InvalidRequest.
std::vector<std::string> unused_sm_suffixes(const nlohmann::json& value);

}  // namespace attnsmith::problem
