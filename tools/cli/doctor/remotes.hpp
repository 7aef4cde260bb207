// What doctor finds of the remote layers.
#pragma once

#include <vector>

#include "cli/doctor/finding.hpp"
#include "reports/kernel_list.hpp"
#include "settings/environment.hpp"

namespace attnsmith::cli {

// Asks each remote, for at most engine::kLongestExamination; none where there is no remote. `kernels` are
// what the cache has. With `write` each is given a line of text, and that it cannot be is a failure.
std::vector<Finding> remote_findings(const engine::Settings& settings,
                                     const std::vector<engine::KernelEntry>& kernels, bool write);

}  // namespace attnsmith::cli
