// Around wgmma.mma_async: matrix descriptors, and the order of its groups. The instructions themselves
// have hundreds of operands and are written out for one product by the specialiser (Config::multiply_*).
#pragma once

#include "common/registers.cuh"
#include "common/shared.cuh"

namespace attnsmith {

// The lower half of a tile's matrix descriptor, whose bits abi/attention_wgmma.h describes. Each step of a
// product begins at a constant from this start, which the specialiser adds. `leading`: bytes from one panel
// to the next, where the product does not sum over columns.
__device__ inline uint32 descriptor_start(SharedAddress tile, uint32 leading = 16) {
    // The tensor core's operands are uniform registers.
    return uniform((leading >> 4) << 16 | (tile.value & 0x3ffff) >> 4);
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
