// Entries of the cache, put to its remote layers: `attnsmith cache push`.
#pragma once

#include "attnsmith/runtime.hpp"
#include "engine/runtime_access.hpp"

namespace attnsmith::engine {

// As Cache::push().
CachePushReport push_entries(const RuntimeImpl& runtime, const CachePushOptions& options);

}  // namespace attnsmith::engine
