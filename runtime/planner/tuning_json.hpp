// Tuning tables as JSON, schema attnsmith.tuning/1 (runtime/schemas/tuning.schema.json).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "families/tuning.hpp"

namespace attnsmith::planner {

using families::TileSource;
using families::TuningEntry;

// An entry as a file has it.
struct MeasuredEntry : TuningEntry {
    std::string measured{};  // for people: a JSON object, or empty

    bool operator==(const MeasuredEntry&) const = default;
};

// Throws InvalidRequest naming the file and the field.
std::vector<MeasuredEntry> parse_tuning(std::string_view json, std::string_view file, TileSource source);

// Sorted by what the entries match, a few lines each, so that two versions of a table can be compared.
std::string to_json(std::span<const MeasuredEntry> entries);

// What an entry matches, as a table has it under "match".
nlohmann::ordered_json match_json(const families::TuningMatch& match);

}  // namespace attnsmith::planner
