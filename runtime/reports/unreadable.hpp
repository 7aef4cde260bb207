// What of the cache could not be read, in words.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "attnsmith/cache.hpp"
#include "cache/files/status.hpp"

namespace attnsmith::engine {

// What the store says, in the words of attnsmith/cache.hpp.
std::vector<CacheUnreadable> report_of(std::span<const cache::Status> unreadable);

// The first of what could not be read, and how many more there are. REQUIRES: not empty.
std::string unreadable_text(std::span<const cache::Status> unreadable);
std::string unreadable_text(std::span<const CacheUnreadable> unreadable);

}  // namespace attnsmith::engine
