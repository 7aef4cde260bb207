// Bounds of a Problem, for validation of specs and of tensors alike.
#pragma once

#include <cstdint>

namespace attnsmith::problem {

// Longest sequence, largest batch and most tokens that a kernel's 32-bit positions carry.
inline constexpr std::int64_t kMaxLength = std::int64_t{1} << 30;

inline constexpr std::int64_t kMinHeadDim = 8;
inline constexpr std::int64_t kMaxHeadDim = 512;
inline constexpr std::int64_t kHeadDimStep = 8;  // elements of 16 bytes

// Latent attention: the latent's columns are a multiple of the least, which is a panel of shared memory.
inline constexpr std::int64_t kMinLatentDim = 64;
inline constexpr std::int64_t kMaxPositionDim = 64;

// Columns that share a scale of kv_scale block128.
inline constexpr std::int64_t kScaleBlock = 128;

inline constexpr std::int64_t kMaxHeads = std::int64_t{1} << 16;
inline constexpr std::int64_t kMaxBatch = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxPageSize = std::int64_t{1} << 20;

// Queries times group size: packed rows are numbered in 32 bits, and the last tile may reach beyond them.
inline constexpr std::int64_t kMaxPackedQueries = (std::int64_t{1} << 31) - 1024;

// Batch times queries times q_heads. No memory holds as many; counts of CTAs and bytes stay within 64 bits.
inline constexpr std::int64_t kMaxQueryRows = std::int64_t{1} << 40;

}  // namespace attnsmith::problem
