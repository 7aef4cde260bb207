// What the help says of a request's field beyond its text, taken from the library itself: the defaults, and
// the words that no kernel serves yet.
#pragma once

#include <string>

#include "problem/request/request_fields.hpp"

namespace attnsmith::cli {

// Where a command takes the field from.
enum class FieldSource { request, model, either };

// " (default dense; with --model paged)"; empty where there is nothing to say.
// `request` is what a request has by default.
std::string field_details(const problem::RequestField& field, FieldSource source,
                          const AttentionRequest& request);

}  // namespace attnsmith::cli
