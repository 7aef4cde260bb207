// What `attnsmith doctor` finds.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnsmith/runtime.hpp"

namespace attnsmith::cli {

enum class Health { ok, warn, fail };

struct Finding {
    Health health = Health::ok;
    std::string name;    // "driver", "device 0", "nvrtc", "environment", "cache", "remote", "tuning", ...
    std::string text;    // what was found
    std::string remedy;  // empty where none is needed
    nlohmann::ordered_json facts = nlohmann::ordered_json::object();
};

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
