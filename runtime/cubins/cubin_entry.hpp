// A cubin as a cache entry: the JSON metadata beside its bytes, written and read in one place.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "cache/store/store.hpp"
#include "cubins/cubin.hpp"
#include "cubins/kernel_source.hpp"

namespace attnsmith::engine {

// `with_source`: the metadata holds the source, which nothing but people reads.
cache::Entry to_entry(const KernelSource& source, const Cubin& cubin, bool with_source);

// An entry's metadata; discarded (nlohmann's word) where it is no JSON or deeper than any that to_entry()
// writes, for what writes values out would go as deep as they do.
nlohmann::ordered_json parse_metadata(const std::string& text);

// An entry's cubin, or why it has none: one of the two. Its metadata is judged as find_fault() does; what the
// cubin itself says is for what_is_wrong() to look at.
struct ReadEntry {
    std::shared_ptr<const Cubin> cubin;
    std::string fault;
};
ReadEntry from_entry(const cache::Candidate& candidate, cache::Entry entry);
// The same, judged by what_is_wrong() too: what can be used for the kernel.
ReadEntry read_for(const KernelSource& source, const cache::Candidate& candidate, cache::Entry entry);

// All that can be judged of an entry as it lies in the cache, with no kernel to hold it against: whether its
// metadata is whole and of this key and toolchain, and its cubin is what the metadata says. A
// cache::CheckContent: entries of another release's schema have no fault that is known here.
std::optional<std::string> find_fault(const cache::Digest& key, const cache::Version& toolchain,
                                      const cache::Entry& entry);

// Whether bytes that somebody calls this kernel's cubin, be it NVRTC or an entry, can be. Nothing if so.
std::optional<std::string> what_is_wrong(const KernelSource& source, const Cubin& cubin);

}  // namespace attnsmith::engine
