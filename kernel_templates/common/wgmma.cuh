// Around wgmma.mma_async: matrix descriptors, and the order of its groups. The instructions themselves are in
// common/wgmma_product.cuh.
#pragma once

#include "common/panel_tile.cuh"
#include "common/registers.cuh"

namespace attnsmith {

// The lower half of a tile's matrix descriptor, whose bits abi/wgmma.h describes. Each step of a product
// begins at a constant from this start. The tensor core's operands are uniform registers.
namespace detail {
__device__ inline uint32 descriptor_start(SharedAddress tile, uint32 leading) {
    return uniform((leading >> 4) << 16 | (tile.value & 0x3ffff) >> 4);
}
}  // namespace detail

// Of a tile of which a product sums over the columns of rows: A, or K.
template <int Rows>
__device__ uint32 row_descriptor(const PanelTile<Rows>& tile) {
    return detail::descriptor_start(tile.start, 16);
}
// Of a tile of which a product sums over rows, and whose columns are those of the sums: V. It crosses panels.
template <int Rows>
__device__ uint32 column_descriptor(const PanelTile<Rows>& tile) {
    return detail::descriptor_start(tile.start, PanelTile<Rows>::kPanel);
}

// Before a wgmma whose registers other instructions have written.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most `Pending` of the committed groups are under way.
template <int Pending>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

}  // namespace attnsmith
