// Whether the cache's directories are there, and are directories.
#pragma once

#include <string>
#include <string_view>

#include "settings/environment.hpp"

namespace attnsmith::engine {

// Throws CacheError with the remedy where the settings have no directory, InvalidRequest naming what they are
// named by where the first is something else, or another is neither a directory nor a file (a bundle).
void require_directories(const Settings& settings, std::string_view remedy);

// Whether there is nothing of this name, or a link to nothing.
bool is_missing(const std::string& path);

}  // namespace attnsmith::engine
