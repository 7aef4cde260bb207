// What prewarm and its dry run both say of a cache.
#pragma once

#include <string>

#include "cache/store/store.hpp"

namespace attnsmith::engine {

// Why prewarm cannot write to the cache's own directory; empty if it can.
std::string why_nothing_can_be_stored(const cache::Statistics& statistics);

}  // namespace attnsmith::engine
