// What `attnsmith doctor` finds.
#pragma once

#include <algorithm>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "cli/doctor/finding.hpp"

namespace attnsmith::cli {

struct DoctorReport {
    std::vector<Finding> findings;

    bool ok() const {
        return std::ranges::none_of(findings, [](const Finding& one) { return one.health == Health::fail; });
    }
};

// Opens the driver and NVRTC, reads the cache directories, asks the remotes; changes nothing. With
// `write_to_remotes`, each of them is given a line of text.
DoctorReport examine(const RuntimeOptions& options, bool write_to_remotes);

}  // namespace attnsmith::cli
