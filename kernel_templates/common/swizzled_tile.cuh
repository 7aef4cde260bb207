// A tile in shared memory for cp.async and ldmatrix: panels of up to 64 columns, each [row][columns],
// swizzled.
#pragma once

#include "abi/key_value_ring.h"
#include "common/swizzle.cuh"

namespace attnsmith {

template <class Element, int Rows, int HeadDim>
struct SwizzledTile {
    static constexpr int kElementBytes = sizeof(Element);
    static constexpr int kChunkElements = 16 / kElementBytes;
    static constexpr int kColumns = abi::panel_columns(abi::padded_head_dim(HeadDim));
    static constexpr int kRowBytes = kColumns * kElementBytes;
    static constexpr int kChunks = kRowBytes / 16;  // of a panel's row: 8, 4 or 2
    static constexpr int kPanelBytes = Rows * kRowBytes;
    static constexpr int kRowChunks = abi::padded_head_dim(HeadDim) / kChunkElements;  // of all its panels

    SharedAddress start;  // a multiple of 128

    // Address of the 16-byte chunk `chunk` (of the whole row) of `row`.
    __device__ SharedAddress chunk(int row, int chunk) const { return start + offset(row, chunk); }

    // Address of chunk 2 * pair + half, `rows` below the row of `from`, a multiple of 16. `from` is the
    // address of the chunk `half` (0 or 1) of a row: so that a lane computes one address, and what differs
    // from one ldmatrix to the next are constants.
    static __device__ constexpr SharedAddress step(SharedAddress from, int rows, int pair) {
        return {(from.value ^ (2 * pair % kChunks * 16)) + (2 * pair / kChunks) * kPanelBytes +
                rows * kRowBytes};
    }

  private:
    static __device__ constexpr uint32 offset(int row, int chunk) {
        const int swizzled = swizzled_chunk<kChunks>(row, chunk);
        return (chunk / kChunks) * kPanelBytes + row * kRowBytes + swizzled * 16;
    }
};

}  // namespace attnsmith
