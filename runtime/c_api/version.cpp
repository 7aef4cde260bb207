// What the loaded library is, and what it can do.
#include "attnsmith/version.hpp"

#include "attnsmith/attnsmith.h"
#include "reports/features.hpp"

using namespace attnsmith;

std::int32_t attnsmith_abi_version(void) noexcept { return ATTNSMITH_ABI_VERSION; }

const char* attnsmith_version(void) noexcept { return version().data(); }

std::int32_t attnsmith_has_feature(const char* name) noexcept {
    return name != nullptr && has_feature(name) ? 1 : 0;
}

const char* attnsmith_features(void) noexcept { return engine::features_json().c_str(); }
