// What the loaded library is, and what it can do.
#include "attnsmith/version.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "attnsmith/attnsmith.h"

namespace attnsmith::c_api {
namespace {

constexpr std::string_view kFeatures[] = {"op:attention", "op:merge",      "backend:mma",  "cache:ls",
                                          "cache:stat",   "cache:explain", "cache:verify", "cache:gc",
                                          "cache:clear",  "cache:export",  "cache:import"};

constexpr std::size_t json_bytes() {
    std::size_t bytes = sizeof "[]";
    for (const std::string_view feature : kFeatures) bytes += feature.size() + sizeof "\"\", " - 1;
    return bytes - (sizeof ", " - 1);
}

// Made by the compiler, so that it is there for ever and nothing can fail.
constexpr auto kFeaturesJson = [] {
    std::array<char, json_bytes()> json{};
    auto at = json.begin();
    const auto put = [&](std::string_view text) { at = std::copy(text.begin(), text.end(), at); };
    put("[");
    for (const std::string_view feature : kFeatures) {
        if (feature != kFeatures[0]) put(", ");
        put("\"");
        put(feature);
        put("\"");
    }
    put("]");
    return json;
}();

}  // namespace
}  // namespace attnsmith::c_api

using namespace attnsmith::c_api;

std::int32_t attnsmith_abi_version(void) { return ATTNSMITH_ABI_VERSION; }

const char* attnsmith_version(void) { return ATTNSMITH_VERSION; }

std::int32_t attnsmith_has_feature(const char* name) {
    if (name == nullptr) return 0;
    return std::find(std::begin(kFeatures), std::end(kFeatures), name) != std::end(kFeatures) ? 1 : 0;
}

const char* attnsmith_features(void) { return kFeaturesJson.data(); }
