// What the compiler is told about registers, beyond what the language can say. None of these is more than a
// few instructions; each keeps ptxas or NVVM from a choice that costs more than it spares.
#pragma once

#include "common/fragment.cuh"

namespace attnsmith {

// What is computed from x is computed again from here on, instead of being kept in registers.
template <class Integer>
__device__ inline void forget(Integer& x) {
    asm volatile("" : "+r"(x));
}

// Keeps the compiler from moving uses of a wgmma's registers over its wait.
template <int Columns>
__device__ inline void pin(Accumulator<Columns>& registers) {
#pragma unroll
    for (int j = 0; j < Columns / 8; ++j) {
        asm volatile(""
                     : "+f"(registers[j][0]), "+f"(registers[j][1]), "+f"(registers[j][2]),
                       "+f"(registers[j][3])::"memory");
    }
}

// Keeps ptxas from moving what a sum of weights is made of to behind this place: it cannot move that over a
// branch that depends on the sum, and it does not know that no sum of weights is negative.
__device__ inline void complete_before(float sum_of_weights) {
    if (sum_of_weights < 0.0f) asm volatile("nanosleep.u32 20;" ::: "memory");
}

// The same over a warp, and known to be: then it is kept in a uniform register.
__device__ inline uint32 uniform(uint32 x) { return __shfl_sync(0xffffffffu, x, 0); }

// Registers of the warpgroup's threads from here on. It waits until others have given back enough.
template <int Count>
__device__ inline void set_registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

template <int Count>
__device__ inline void set_registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

}  // namespace attnsmith
