// A tile of 16-bit elements in shared memory: panels of up to 64 columns, each [row][columns], whose 16-byte
// chunks are permuted within a row so that the eight rows of an ldmatrix lie in different banks.
#pragma once

#include "abi/attention_shared.h"

namespace attnsmith {

template <int Rows, int HeadDim>
struct Panel {
    static constexpr int kColumns = abi::panel_columns(abi::padded_head_dim(HeadDim));
    static constexpr int kChunks = kColumns / 8;  // 16-byte chunks of a panel's row: 8, 4 or 2

    // Byte offset of the 16-byte chunk `chunk` (of the whole row) of `row`.
    static __device__ constexpr uint32 offset(int row, int chunk) {
        const int swizzled = (chunk % kChunks) ^ ((row * kChunks / 8) % kChunks);
        return (chunk / kChunks) * (Rows * kColumns * 2) + row * (kColumns * 2) + swizzled * 16;
    }

    // Address of chunk 2 * pair + half, `rows` below the row of `start`, a multiple of 16. `start` is the
    // address of the chunk `half` (0 or 1) of a row, in a tile that begins at a multiple of 128: so that a
    // lane computes one address, and what differs from one ldmatrix to the next are constants.
    static __device__ constexpr uint32 step(uint32 start, int rows, int pair) {
        return (start ^ (2 * pair % kChunks * 16)) + (2 * pair / kChunks) * (Rows * kColumns * 2) +
               rows * (kColumns * 2);
    }
};

}  // namespace attnsmith
