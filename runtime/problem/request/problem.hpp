// A validated request. Everything behind the public API works on Problems only, so nothing below checks
// again.
#pragma once

#include <cstdint>

#include "attnsmith/spec.hpp"
#include "problem/request/spec_facts.hpp"

namespace attnsmith::problem {

// An AttentionSpec whose defaults are filled in (head_dim_vo, kv_heads, scale, and window_right of a causal
// mask: absent) and whose fields were all checked, with the sizes to plan for. Of op merge, the fields that
// do not count have their defaults.
struct Problem {
    AttentionSpec spec{};
    PlanSizes sizes{};

    // REQUIRES: op attention or mla.
    std::int64_t group_size() const { return spec.q_heads / spec.kv_heads; }
    bool operator==(const Problem&) const = default;
};

// Takes FlashAttention's and FlashInfer's words for nothing: softcap 0 and a window bound of -1. Throws
// InvalidRequest naming the first field that is wrong, Unsupported for an op, a dtype or a head dimension
// that is not supported.
Problem validate(const AttentionSpec& spec, const PlanSizes& sizes);

// What validate() says of the sizes, of a problem whose spec is a validated one's. Allocates only to throw.
void check_sizes(const Problem& problem);

}  // namespace attnsmith::problem
