// One finding of `attnsmith doctor`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace attnsmith::cli {

enum class Health { ok, warn, fail };

struct Finding {
    Health health = Health::ok;
    std::string name;    // "driver", "device 0", "nvrtc", "environment", "cache", "remote", "tuning", ...
    std::string text;    // what was found
    std::string remedy;  // empty where none is needed
    nlohmann::ordered_json facts = nlohmann::ordered_json::object();
};

}  // namespace attnsmith::cli
