// Around wgmma.mma_async: matrix descriptors, and the order of its registers. The instructions themselves
// have hundreds of operands and are written out for one product by the specialiser (Config::multiply_*).
#pragma once

#include "abi/integers.h"

namespace attnsmith {

// The lower half of a tile's matrix descriptor, whose bits abi/attention_wgmma.h describes. Each step of a
// product begins at a constant from this start, which the specialiser adds. `leading`: bytes from one panel
// to the next, where the product does not sum over columns.
__device__ inline uint32 descriptor_start(uint32 address, uint32 leading = 16) {
    // The same over a warp, and known to be: the tensor core's operands are uniform registers.
    return __shfl_sync(0xffffffffu, (leading >> 4) << 16 | (address & 0x3ffff) >> 4, 0);
}

// Before a wgmma whose registers other instructions have written.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until at most `Pending` of the committed groups are under way.
template <int Pending>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// Keeps the compiler from moving uses of a wgmma's registers over its wait.
template <int N>
__device__ inline void pin(float (&registers)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
        asm volatile(""
                     : "+f"(registers[j][0]), "+f"(registers[j][1]), "+f"(registers[j][2]),
                       "+f"(registers[j][3])::"memory");
    }
}

template <int Count>
__device__ inline void set_registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

template <int Count>
__device__ inline void set_registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

}  // namespace attnsmith
