// Keys and values of 8 bits that a kernel dequantises into the workspace, before the attention that reads
// them.
#pragma once

#include <cstdint>

#include "attnsmith/spec.hpp"
#include "problem/tensors/bound_shape.hpp"

namespace attnsmith::families {

// Widened keys and values take no more of a workspace than this, whatever the bounds are.
inline constexpr std::int64_t kMostWidenedBytes = std::int64_t{256} << 20;

// Tokens of each sequence that the workspace has room for.
std::int64_t widened_tokens(const problem::BoundShape& shape);
// Bytes of the keys, or of the values, of all sequences and KV heads.
std::int64_t widened_bytes(const AttentionSpec& spec, const problem::BoundShape& shape,
                           std::int64_t head_dim);
// Bytes of both.
std::int64_t widened_bytes(const AttentionSpec& spec, const problem::BoundShape& shape);
bool has_room_to_widen(const AttentionSpec& spec, const problem::BoundShape& shape);

}  // namespace attnsmith::families
