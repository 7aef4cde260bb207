// Which keys a mask lets each query see: an interval of them. Planning on the host and the mask on the device
// use this one function.
#pragma once

#include "abi/divisor.h"
#include "abi/integers.h"

namespace attnsmith::abi {

// A window that is not there. Lengths are at most 2^30, so position + window + 1 stays within 32 bits.
inline constexpr int32 kUnbounded = (1 << 30) - 1;

// Keys, or blocks of keys, first .. end - 1: none where end <= first.
struct KeyInterval {
    int32 first, end;

    ATTNSMITH_HOST_DEVICE bool is_empty() const { return end <= first; }
};

// Both ends of what a query sees never decrease from one query to the next: tiles rely on it.
struct KeyBounds {
    // Keys before and after the query's own that it sees; kUnbounded: all. Causal is window_right 0.
    int32 window_left, window_right;
    // Tokens: a query sees the keys of its own chunk only. Chunks begin at multiples of it; 0: there are
    // none.
    Divisor attention_chunk;
    // Tokens: a query sees the keys up to the end of its block, instead of window_right. Blocks begin at
    // multiples of it; 0: there are none.
    Divisor causal_block;

    // What the query at a position sees of `kv_len` keys. The last query is at position kv_len - 1; those
    // before the first key have negative positions.
    ATTNSMITH_HOST_DEVICE KeyInterval seen_from(int32 at, int32 kv_len) const {
        KeyInterval keys{larger(at - window_left, 0), at + window_right + 1};
        // A query at a negative position is in a block that ends before the first key.
        if (causal_block > 0) keys.end = at < 0 ? 0 : at - at % causal_block + causal_block;
        keys.end = smaller(keys.end, kv_len);
        if (attention_chunk > 0) {
            // A query at a negative position is in a chunk that has no key.
            const int32 chunk_first = at - larger(at, 0) % attention_chunk;
            keys.first = larger(keys.first, chunk_first);
            keys.end = smaller(keys.end, at < 0 ? 0 : chunk_first + attention_chunk);
        }
        return keys;
    }
};

}  // namespace attnsmith::abi
