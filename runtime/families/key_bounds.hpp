// A request's mask and windows as bounds on the keys of each query (abi/key_bounds.h), and what planning
// counts with them. The reference of tools/check derives nothing from here: it is what this is tested
// against.
#pragma once

#include <cstdint>
#include <string_view>

#include "abi/key_bounds.h"
#include "attnsmith/spec.hpp"

namespace attnsmith::families {

// REQUIRES: the spec is validated.
abi::KeyBounds bounds_of(const AttentionSpec& spec);

// What tiles are tuned for. A causal mask with any other bound is a window.
enum class MaskClass : std::uint8_t { full, causal, window };

std::string_view to_string(MaskClass mask);

// Chunks are long compared with tiles. They have the class of the mask within them, so that chunked and other
// layers of a model share their kernels.
MaskClass mask_class(const abi::KeyBounds& bounds);

struct KeyWork {
    std::int64_t keys = 1;  // that a query of average position sees, with what its tile sees beyond it
    int sides = 0;          // of the interval that depend on the query's position
};

KeyWork key_work(const abi::KeyBounds& bounds, std::int64_t q_len, std::int64_t kv_len);

}  // namespace attnsmith::families
