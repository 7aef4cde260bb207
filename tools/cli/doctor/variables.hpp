// What doctor finds in the environment.
#pragma once

#include <vector>

#include "cli/doctor/finding.hpp"
#include "settings/environment.hpp"

namespace attnsmith::cli {

// The settings without the variables that cannot be understood: each is a finding, and taken out of this
// process's environment, since a program with it would not start at all.
engine::Settings settle_for_report(const RuntimeOptions& options, std::vector<Finding>& findings);

// A line for each variable that is set and that NVRTC reads.
std::vector<Finding> compiler_environment_findings();

// A line for each variable that is set, has a name like one of ours, and is read by nobody.
std::vector<Finding> unknown_variable_findings();

// What is wrong with ATTNSMITH_RECORD; nothing where it is not set.
std::vector<Finding> record_findings(const engine::Settings& settings);

}  // namespace attnsmith::cli
