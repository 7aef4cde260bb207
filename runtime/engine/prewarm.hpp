// Filling the cache, and what prewarm and its dry run both say of one.
#pragma once

#include <span>
#include <string>

#include "attnsmith/runtime.hpp"
#include "cache/store/store.hpp"
#include "engine/runtime_access.hpp"

namespace attnsmith::engine {

// Runtime::prewarm() of specs.
PrewarmReport prewarm(RuntimeImpl& runtime, std::span<const AttentionSpec> specs, std::span<const int> sms,
                      const PrewarmOptions& options);

// Why prewarm cannot write to the cache's own directory; empty if it can.
std::string why_nothing_can_be_stored(const cache::Statistics& statistics);

}  // namespace attnsmith::engine
