// A validated request. Everything behind the public API works on Problems only, so nothing below checks
// again.
#pragma once

#include <cstdint>

#include "attnsmith/spec.hpp"
#include "problem/limits.hpp"
#include "problem/request/request_fields.hpp"

namespace attnsmith::problem {

// Longest sequence, largest batch and most tokens that a kernel's 32-bit positions carry.
inline constexpr std::int64_t kMaxLength = std::int64_t{1} << 30;

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

// What o is stored as.
inline DType output_dtype(const AttentionSpec& spec) { return spec.o_dtype.value_or(spec.dtype); }

// What k and v are stored as.
inline DType kv_dtype(const AttentionSpec& spec) { return spec.kv_dtype.value_or(spec.dtype); }

// The columns of the position in latents, as they are stored.
inline DType position_dtype(const AttentionSpec& spec) {
    return is_latent(spec) && spec.kv_scale == KvScale::block128 ? spec.dtype : kv_dtype(spec);
}

// Scales that a head of a token has of its own: none, one, or of a latent one for each block of its columns.
inline std::int64_t scale_blocks(const AttentionSpec& spec) {
    if (!is_of_tokens(spec.kv_scale)) return 0;
    return is_latent(spec) && spec.kv_scale == KvScale::block128 ? spec.head_dim_ckv / kScaleBlock : 1;
}

// Columns of V, and so of O: of op mla the latent's.
inline std::int64_t value_dim(const AttentionSpec& spec) {
    return spec.op == Op::mla ? spec.head_dim_ckv : spec.head_dim_vo;
}
// Columns of keys that are no columns of V: of op mla the position's, of others all.
inline std::int64_t key_dim(const AttentionSpec& spec) {
    return spec.op == Op::mla ? spec.head_dim_kpe : spec.head_dim_qk;
}

// Takes FlashAttention's and FlashInfer's words for nothing: softcap 0 and a window bound of -1. Throws
// InvalidRequest naming the first field that is wrong, Unsupported for an op, a dtype or a head dimension
// that is not supported.
Problem validate(const AttentionSpec& spec, const PlanSizes& sizes);

// What validate() says of the sizes, of a problem whose spec is a validated one's. Allocates only to throw.
void check_sizes(const Problem& problem);

}  // namespace attnsmith::problem
