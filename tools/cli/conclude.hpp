// How a command over models ends: what is not supported or not known is said, and makes the exit code.
#pragma once

#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/refused.hpp"
#include "cli/warnings.hpp"

namespace attnsmith::cli {

// --allow-unsupported: what is not supported is listed, but does not fail the command.
// --strict: warnings fail it, too, and unsupported parts in any case.
void add_doubt_flags(Command& command);

// A line for each kind of doubt that fails the command; none where it may succeed.
std::vector<std::string> failing_doubts(const Command& command, const std::vector<Refused>& refused,
                                        const std::vector<ModelWarning>& warnings);

// Prints all troubles as one error. Returns the exit code.
int conclude(const std::vector<std::string>& troubles);

}  // namespace attnsmith::cli
