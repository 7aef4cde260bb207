// What the loaded library is, and what it can do.
#include "attnsmith/version.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnsmith/attnsmith.h"
#include "problem/json_text.hpp"
#include "reports/features.hpp"

namespace attnsmith::c_api {
namespace {

struct Features {
    std::vector<std::string> names = engine::features();
    std::string json = problem::one_line(nlohmann::json(names));
};

// Made when the library is loaded and there for ever, so that asking cannot fail.
const Features& features = *new Features;

}  // namespace
}  // namespace attnsmith::c_api

using namespace attnsmith::c_api;

std::int32_t attnsmith_abi_version(void) { return ATTNSMITH_ABI_VERSION; }

const char* attnsmith_version(void) { return ATTNSMITH_VERSION; }

std::int32_t attnsmith_has_feature(const char* name) {
    if (name == nullptr) return 0;
    return std::find(features.names.begin(), features.names.end(), name) != features.names.end() ? 1 : 0;
}

const char* attnsmith_features(void) { return features.json.c_str(); }
