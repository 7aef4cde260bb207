// The repository's own tuning tables, runtime/planner/tuning/*.json, as constants: embed_tuning.cpp writes
// them when the library is built.
#pragma once

#include <span>
#include <string_view>

#include "planner/tuning.hpp"

namespace attnsmith::planner {

struct EmbeddedEntry {
    TuningMatch match;
    TuningTile tile;
    std::string_view measured;
};

std::span<const EmbeddedEntry> embedded_entries();  // of the files in alphabetical order

}  // namespace attnsmith::planner
