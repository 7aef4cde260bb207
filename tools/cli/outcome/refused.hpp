// The parts of what was asked for that cannot be done: the rest is done, they are listed, the exit code is 1.
#pragma once

#include <string>
#include <vector>

#include "attnsmith/coverage.hpp"
#include "attnsmith/prewarm.hpp"

namespace attnsmith::cli {

// What is refused, by its name; on one SM alone, or on none (0).
PrewarmRefusal refused(std::string name, std::string reason, int sm = 0);
std::vector<PrewarmRefusal> refused_parts(const std::vector<UnsupportedPart>& parts);

// A line for each: "skipped  NAME: REASON", of combinations of words and recorded lines that were left out.
std::string list_text(const std::vector<SkippedPart>& skipped);
// A line for each: "unsupported  NAME: REASON".
std::string list_text(const std::vector<PrewarmRefusal>& refused);
// One line for all: "1 part is not supported: NAME (REASON)".
std::string summary_of(const std::vector<PrewarmRefusal>& refused);

}  // namespace attnsmith::cli
