// What follows from a single spec: how its tensors are stored, and how many columns they have.
#pragma once

#include <cstdint>

#include "attnsmith/spec.hpp"
#include "problem/limits.hpp"

namespace attnsmith::problem {

// Whether it is of latents: their columns take the place of head dims. No other request has any.
inline bool is_latent(const AttentionSpec& spec) { return spec.head_dim_ckv != 0; }

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
    if (!is_per_token(spec.kv_scale)) return 0;
    return is_latent(spec) && spec.kv_scale == KvScale::block128 ? spec.head_dim_ckv / kScaleBlock : 1;
}

// Columns of V, and so of O: of latents the latent's.
inline std::int64_t value_dim(const AttentionSpec& spec) {
    return is_latent(spec) ? spec.head_dim_ckv : spec.head_dim_vo;
}
// Columns of keys that are no columns of V: of latents the position's, of others all.
inline std::int64_t key_dim(const AttentionSpec& spec) {
    return is_latent(spec) ? spec.head_dim_kpe : spec.head_dim_qk;
}

}  // namespace attnsmith::problem
