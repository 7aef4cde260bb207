// What a program asked for, as a line of a recorded file. attnsmith::recorded_coverage() reads such files.
#pragma once

#include <string>

#include "problem/request/problem.hpp"

namespace attnsmith::problem {

// With the newline at its end: {"schema": "attnsmith.recorded/1", "request": {...}}, without sizes and sm.
std::string recorded_line(const Problem& problem);

// The request in such a line.
std::string request_json(const Problem& problem);

// The flags of a command that asks for that request, without what is at its default:
// "--head-dim 128 --q-heads 32".
std::string request_flags(const Problem& problem);

}  // namespace attnsmith::problem
