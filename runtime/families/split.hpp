// How the keys of a launch are divided over CTAs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace attnsmith::families {

enum class SplitPolicy : std::uint8_t {
    none,    // a CTA takes all keys of its query tile
    chunks,  // every sequence in chunks at absolute key positions, which a second kernel merges
    shares   // CTAs take equal shares of all keys, which they find on the device and join themselves
};

std::string_view to_string(SplitPolicy policy);  // as plans call it

struct Split {
    SplitPolicy policy = SplitPolicy::none;
    std::int64_t keys = 0;   // of a chunk, or the least that a share is given; a multiple of tile_kv
    std::int64_t parts = 1;  // chunks of the longest sequence, or CTAs that have a share

    // Into how many chunks every sequence is divided by the host.
    std::int64_t chunks() const { return policy == SplitPolicy::chunks ? parts : 1; }
    bool operator==(const Split&) const = default;
};

std::string describe(const Split& split);  // "4 chunks of 1024 keys", "264 equal shares"

}  // namespace attnsmith::families
