// A tile in shared memory for the copy engine and for wgmma: panels of rows of 128 bytes, swizzled by 128
// bytes.
#pragma once

#include "abi/tensor_map.h"
#include "common/registers.cuh"
#include "common/swizzle.cuh"

namespace attnsmith {

// `Rows`: of a panel. A tile may be some of the rows of a larger one.
template <int Rows>
struct PanelTile {
    static constexpr int32 kChunks = abi::kPanelBytes / 16;   // of a panel's row
    static constexpr int32 kPanel = Rows * abi::kPanelBytes;  // from one panel to the next

    SharedAddress start;  // a multiple of eight rows

    // Address of the 16-byte chunk `chunk` (of the whole row) of `row`.
    __device__ SharedAddress chunk(int32 row, int32 chunk) const {
        const int32 in_row = swizzled_chunk<kChunks>(row, chunk) * 16;
        return start + chunk / kChunks * kPanel + row * abi::kPanelBytes + in_row;
    }
    // Address for a lane of load_matrices() or store_matrices(): the step-th 16 columns of 16 rows.
    __device__ SharedAddress matrices(int32 lane, int32 first_row, int step) const {
        return chunk(first_row + lane % 16, step * 2 + lane / 16);
    }
    __device__ PanelTile panel(int i) const { return {start + i * kPanel}; }
    __device__ PanelTile rows_from(uint32 row) const { return {start + row * abi::kPanelBytes}; }
};

}  // namespace attnsmith
