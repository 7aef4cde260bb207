// The repository's own tuning tables, embedded when the library is built.
#pragma once

#include <span>

#include "problem/embedded_file.hpp"

namespace attnsmith::planner {

std::span<const problem::EmbeddedFile> embedded_files();  // of runtime/planner/tuning, in alphabetical order

}  // namespace attnsmith::planner
