// Which keys a mask and its windows let through, as an interval of keys for each query: said once, for
// planning, for the kernels' arguments and for counting work. A new mask of this kind is a change here, of
// the kernels' arguments, and of kernel_templates/attention/mask.cuh. The reference of tools/check stays
// apart: it is what this is held against.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "attnsmith/spec.hpp"
#include "problem/request/problem.hpp"

namespace attnsmith::problem {

// Keys first .. end - 1; none where end <= first.
struct KeyInterval {
    std::int64_t first = 0, end = 0;

    std::int64_t count() const { return end > first ? end - first : 0; }
};

// What tiles are tuned for. A causal mask with any other bound is a window.
enum class MaskClass : std::uint8_t { full, causal, window };

inline std::string_view to_string(MaskClass mask) {
    switch (mask) {
        case MaskClass::full:
            return "full";
        case MaskClass::causal:
            return "causal";
        case MaskClass::window:
            return "window";
    }
    return "?";
}

// What planning counts with.
struct KeyWork {
    std::int64_t keys = 1;  // that a query of average position sees, with what its tile sees beyond it
    int sides = 0;          // of the interval that a query's position bounds: other queries see other keys
};

struct KeyBounds {
    // Keys before and behind the query's own position that it sees, at most; absent: no bound on that side.
    std::optional<std::int64_t> left{}, right{};
    // Tokens: it sees those of its own chunk alone. Chunks begin at multiples of it; absent: there is one.
    std::optional<std::int64_t> chunk{};

    // Chunks are long beside tiles: they are of the class of the mask within them, so that chunked and other
    // layers of a model share their kernels.
    MaskClass mask_class() const {
        if (!left && right == 0) return MaskClass::causal;
        return left || right ? MaskClass::window : MaskClass::full;
    }

    // What the query at an absolute position sees of so many keys: the last query is at position kv_len - 1.
    KeyInterval seen_from(std::int64_t position, std::int64_t kv_len) const {
        KeyInterval seen{.first = std::max<std::int64_t>(0, position - left.value_or(kMaxLength)),
                         .end = std::min(kv_len, position + right.value_or(kMaxLength) + 1)};
        if (!chunk) return seen;
        if (position < 0) return {.first = seen.first, .end = 0};  // its chunk ends before the first key
        const std::int64_t chunk_first = position / *chunk * *chunk;
        seen.first = std::max(seen.first, chunk_first);
        seen.end = std::min(seen.end, chunk_first + *chunk);
        return seen;
    }

    KeyWork work(std::int64_t q_len, std::int64_t kv_len) const {
        constexpr std::int64_t kTokensOfATile = 64;
        KeyWork work{.sides = int{left.has_value()} + int{right.has_value()}};
        if (chunk && *chunk < kv_len) {  // each is a sequence by itself
            work.sides = 2;
            kv_len = *chunk;
            q_len = std::min(q_len, *chunk);
        }
        work.keys = kv_len;
        if (right == 0) work.keys = std::max<std::int64_t>(1, work.keys - q_len / 2);
        if (left && right)
            work.keys = std::min(work.keys, *left + *right + 1 + std::min(q_len, kTokensOfATile));
        work.keys = std::max<std::int64_t>(1, work.keys);
        return work;
    }
};

// `spec` is a validated one's.
inline KeyBounds bounds_of(const AttentionSpec& spec) {
    KeyBounds bounds{.left = spec.window_left, .right = spec.window_right, .chunk = spec.attention_chunk};
    if (spec.mask == Mask::causal) bounds.right = 0;
    return bounds;
}

}  // namespace attnsmith::problem
