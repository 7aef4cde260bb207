// Entries of the cache, put to its remote layers: `attnsmith cache push`.
#pragma once

#include "attnsmith/runtime.hpp"

namespace attnsmith::engine {

// As Cache::push().
CachePushReport push_entries(const Runtime::Impl& runtime, const CachePushOptions& options);

}  // namespace attnsmith::engine
