// The repository's own tuning tables, runtime/planner/tuning/*.json: of the files in alphabetical order.
// embed_tuning.cpp writes them as constants when the library is built.
#pragma once

#include <span>

#include "families/tuning.hpp"

namespace attnsmith::planner {

std::span<const families::TuningEntry> repository_entries();
inline families::TuningTable repository_tuning() { return families::TuningTable({}, repository_entries()); }

}  // namespace attnsmith::planner
