#include "families/widening.hpp"

#include <algorithm>

#include "abi/widen_arguments.h"

namespace attnsmith::families {

std::int64_t widened_tokens(const problem::BoundShape& shape) {
    return std::max<std::int64_t>(1, shape.max_kv_len);
}

std::int64_t widened_bytes(const AttentionSpec& spec, const problem::BoundShape& shape,
                           std::int64_t head_dim) {
    // Bounds beyond any memory come to more than 64 bits.
    constexpr std::int64_t kMost = std::int64_t{1} << 61;
    const std::int64_t of_token = spec.kv_heads * head_dim * abi::kWidenedBytes;
    const std::int64_t tokens = shape.batch * widened_tokens(shape);
    return tokens > kMost / of_token ? kMost : tokens * of_token;
}

std::int64_t widened_bytes(const AttentionSpec& spec, const problem::BoundShape& shape) {
    return widened_bytes(spec, shape, spec.head_dim_qk) + widened_bytes(spec, shape, spec.head_dim_vo);
}

bool has_room_to_widen(const AttentionSpec& spec, const problem::BoundShape& shape) {
    return widened_bytes(spec, shape) <= kMostWidenedBytes;
}

}  // namespace attnsmith::families
