// Copies from and to global memory, 16 bytes at a time: to shared memory asynchronously (cp.async), and from
// and to registers.
#pragma once

#include "common/shared.cuh"

namespace attnsmith {

// 16 bytes to shared memory, zeros where `valid` is false (the source is then not read). `Alignment` is what
// the source address is a multiple of: cp.async takes 4, 8 or 16; 2-byte aligned sources go through
// registers. Where rows are shorter than a line of L2, which has 128 bytes, no more of it is requested than
// the row (`RowBytes`): the rest may belong to other heads, which are perhaps never read.
template <int Alignment, int RowBytes = 128>
__device__ inline void copy_16_bytes(SharedAddress target, const void* source, bool valid) {
    if constexpr (Alignment == 16 && RowBytes < 128) {
        asm volatile("cp.async.cg.shared.global.L2::64B [%0], [%1], 16, %2;" ::"r"(target.value), "l"(source),
                     "r"(valid ? 16 : 0)
                     : "memory");
    } else if constexpr (Alignment == 16) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target.value),
                     "l"(source), "r"(valid ? 16 : 0)
                     : "memory");
    } else if constexpr (Alignment >= 4) {
#pragma unroll
        for (int i = 0; i < 16; i += Alignment) {
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target.value + i),
                         "l"(static_cast<const char*>(source) + i), "n"(Alignment), "r"(valid ? Alignment : 0)
                         : "memory");
        }
    } else {
        uint16 half[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) half[i] = valid ? static_cast<const uint16*>(source)[i] : uint16(0);
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(target.value),
                     "r"(half[0] | half[1] << 16), "r"(half[2] | half[3] << 16), "r"(half[4] | half[5] << 16),
                     "r"(half[6] | half[7] << 16)
                     : "memory");
    }
}

__device__ inline void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `Pending` of this thread's committed groups are still under way.
template <int Pending>
__device__ inline void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// 16 bytes of global memory that is a multiple of `Alignment` to registers.
template <int Alignment>
__device__ inline void load_16_bytes(uint32 (&r)[4], const void* source) {
    if constexpr (Alignment == 16) {
        const uint4 words = *static_cast<const uint4*>(source);
        r[0] = words.x, r[1] = words.y, r[2] = words.z, r[3] = words.w;
    } else if constexpr (Alignment == 8) {
        const uint2 low = static_cast<const uint2*>(source)[0], high = static_cast<const uint2*>(source)[1];
        r[0] = low.x, r[1] = low.y, r[2] = high.x, r[3] = high.y;
    } else if constexpr (Alignment == 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) r[i] = static_cast<const uint32*>(source)[i];
    } else {
        const uint16* half = static_cast<const uint16*>(source);
#pragma unroll
        for (int i = 0; i < 4; ++i) r[i] = half[2 * i] | uint32(half[2 * i + 1]) << 16;
    }
}

// 16 bytes from registers to global memory that is a multiple of `Alignment`.
template <int Alignment>
__device__ inline void store_16_bytes(void* target, const uint32 (&r)[4]) {
    // The compiler would take some vectors apart.
    if constexpr (Alignment == 16) {
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(r[0]), "r"(r[1]),
                     "r"(r[2]), "r"(r[3])
                     : "memory");
    } else if constexpr (Alignment == 8) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(static_cast<uint32*>(target) + i),
                         "r"(r[i]), "r"(r[i + 1])
                         : "memory");
        }
    } else if constexpr (Alignment == 4) {
#pragma unroll
        for (int i = 0; i < 4; ++i) static_cast<uint32*>(target)[i] = r[i];
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) static_cast<uint16*>(target)[i] = uint16(r[i / 2] >> (i % 2 * 16));
    }
}

}  // namespace attnsmith
