// What is wrong with the outcome of an operation that deletes.
#pragma once

#include "cache/store/store.hpp"

namespace attnsmith::engine {

// Throw CacheError where something could not be deleted.
void require_cleared(const cache::ClearReport& report);
// Also where the key's entries are all in read-only layers.
void require_removed(const cache::RemoveReport& report);
void require_collected(const cache::EvictionReport& report);

}  // namespace attnsmith::engine
