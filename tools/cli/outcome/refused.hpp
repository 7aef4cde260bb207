// The parts of what was asked for that cannot be done: the rest is done, they are listed, the exit code is 1.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "attnsmith/coverage.hpp"

namespace attnsmith::cli {

struct Refused {
    std::string name;
    std::string reason;
    int sm = 0;  // 0: on none
};

std::vector<Refused> refused_parts(const std::vector<UnsupportedPart>& parts);

// What combinations of words, or recorded lines, were left out: [{"name", "reason"}], and a line for each.
nlohmann::ordered_json to_json(const std::vector<SkippedPart>& skipped);
std::string list_text(const std::vector<SkippedPart>& skipped);

// [{"name", "reason", "sm" where it matters}]
nlohmann::ordered_json to_json(const std::vector<Refused>& refused);
// A line for each: "unsupported  NAME: REASON".
std::string list_text(const std::vector<Refused>& refused);
// One line for all: "1 part is not supported: NAME (REASON)".
std::string summary_of(const std::vector<Refused>& refused);

}  // namespace attnsmith::cli
