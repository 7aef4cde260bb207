// A cubin as a cache entry: the JSON metadata beside its bytes, written and read in one place.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cache/store.hpp"
#include "engine/cubins.hpp"

namespace attnsmith::engine {

// `with_source`: the metadata holds the source, which nothing but people reads.
cache::Entry to_entry(const KernelSource& source, const Cubin& cubin, bool with_source);

// An entry's cubin, or why it has none: one of the two. The fields that the entry says it was made from must
// be those of its key; what the cubin itself says is for what_is_wrong() to look at.
struct ReadEntry {
    std::shared_ptr<const Cubin> cubin;
    std::string fault;
};
ReadEntry from_entry(const cache::Candidate& candidate, cache::Entry entry);

// Of an entry as it lies in the cache, with no kernel to hold it against: whether its fields are its key's,
// and its cubin is one for their target. A cache::CheckContent: entries of another schema have no fault that
// is known here.
std::optional<std::string> find_fault(const cache::Digest& key, const cache::Entry& entry);

// Whether bytes that somebody calls this kernel's cubin, be it NVRTC or an entry, can be. Nothing if so.
std::optional<std::string> what_is_wrong(const KernelSource& source, const Cubin& cubin);

}  // namespace attnsmith::engine
