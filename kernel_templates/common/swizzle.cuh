// How tiles in shared memory are swizzled: the 16-byte chunks of a row are permuted, so that the same chunk
// of eight rows, which ldmatrix, wgmma and the copy engine take at once, lies in different banks.
#pragma once

#include "common/shared.cuh"

namespace attnsmith {

// The place of a chunk among those of its row, whose number is a power of two. Rows of 8 chunks, 128 bytes,
// are as hardware has them (CU_TENSOR_MAP_SWIZZLE_128B).
template <int Chunks>
__device__ constexpr int32 swizzled_chunk(int32 row, int32 chunk) {
    static_assert((Chunks & (Chunks - 1)) == 0);
    return (chunk % Chunks) ^ (row * Chunks / 8 % Chunks);
}

}  // namespace attnsmith
