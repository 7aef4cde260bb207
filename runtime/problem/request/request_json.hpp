// The JSON of a request, for plans and keys inside the library. Text comes in through
// attnsmith::parse_request.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "problem/request/problem.hpp"

namespace attnsmith::problem {

// {"op": "attention", ...}: every field that counts for the op, defaults filled in, in a fixed order.
nlohmann::ordered_json to_json(const Problem& problem);

}  // namespace attnsmith::problem
