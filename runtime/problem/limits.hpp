// Bounds of a Problem beside kMaxLength, for validation of specs and of tensors alike.
#pragma once

#include <cstdint>

namespace attnsmith::problem {

inline constexpr std::int64_t kMinHeadDim = 8;
inline constexpr std::int64_t kMaxHeadDim = 256;
inline constexpr std::int64_t kHeadDimStep = 8;  // elements of 16 bytes

inline constexpr std::int64_t kMaxHeads = std::int64_t{1} << 16;
inline constexpr std::int64_t kMaxBatch = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxPageSize = std::int64_t{1} << 20;

// Queries times group size: rows of a packed query tile are numbered in 32 bits.
inline constexpr std::int64_t kMaxPackedQueries = (std::int64_t{1} << 31) - 1;

}  // namespace attnsmith::problem
