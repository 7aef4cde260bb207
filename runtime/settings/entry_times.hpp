// When entries were stored or used, in words and as an age.
#pragma once

#include <cstdint>
#include <string>

#include "cache/files/file_system.hpp"

namespace attnsmith::engine {

std::int64_t age_seconds(cache::FileTime time);
std::string utc_text(cache::FileTime time);  // "2026-01-31T23:59:59Z"

}  // namespace attnsmith::engine
