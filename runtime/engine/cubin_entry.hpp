// A cubin as a cache entry: the JSON metadata beside its bytes, written and read in one place.
#pragma once

#include <memory>

#include "cache/store.hpp"
#include "engine/cubins.hpp"

namespace attnsmith::engine {

// `with_source`: the metadata holds the source, which nothing but people reads.
cache::Entry to_entry(const KernelSource& source, const Cubin& cubin, bool with_source);

// Null when the metadata is not what to_entry() writes.
std::shared_ptr<const Cubin> from_entry(const cache::Candidate& candidate, cache::Entry entry);

}  // namespace attnsmith::engine
