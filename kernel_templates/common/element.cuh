// The element types: how they are stored, conversion from and to fp32, and the mma that multiplies
// them.
#pragma once

#include "abi/integers.h"

namespace attnsmith {

struct f16 {
    uint16 bits;

    // Two fp32 values, rounded to nearest even, `low` in the lower half. PTX: cvt.
    static __device__ uint32 pack(float low, float high) {
        uint32 packed;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
        return packed;
    }
    // The reverse: x is the lower half.
    static __device__ float2 unpack(uint32 packed) {
        float2 pair;
        asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
            : "=f"(pair.x), "=f"(pair.y)
            : "r"(packed));
        return pair;
    }
    // d += a b, a 16x16 by rows, b 16x8 by columns, d in fp32. PTX: mma.m16n8k16.
    static __device__ void mma(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

struct bf16 {
    uint16 bits;

    static __device__ uint32 pack(float low, float high) {
        uint32 packed;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
        return packed;
    }
    // The reverse: x is the lower half.
    static __device__ float2 unpack(uint32 packed) {
        return {__uint_as_float(packed << 16), __uint_as_float(packed & 0xffff0000u)};
    }
    static __device__ void mma(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

// Only O has this type: kernels multiply none.
struct f32 {
    float value;
};

// Floats of 8 bits are what keys and values may be stored as. Nothing is multiplied in them: fp16 has all of
// their numbers, so that they are widened without a rounding, four at a time.
struct e4m3 {
    uint8 bits;

    // `four`, the first in the lowest byte, as two pairs of fp16. PTX: cvt, from sm_89 on.
    static __device__ void widen(uint32 (&pairs)[2], uint32 four) {
#if __CUDA_ARCH__ >= 890
        asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; "
            "cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high;}"
            : "=r"(pairs[0]), "=r"(pairs[1])
            : "r"(four));
#else
        pairs[0] = of_high_bytes(__byte_perm(four, 0, 0x1404));
        pairs[1] = of_high_bytes(__byte_perm(four, 0, 0x3424));
#endif
    }

  private:
    // The exponent's bits are fp16's lower ones: the number is 2^-8 of what it should be. All ones are NaN,
    // which an addition carries into a bit that no number has.
    static __device__ uint32 of_high_bytes(uint32 x) {
        const uint32 magnitude = x >> 1 & 0x3f803f80u;
        const uint32 nan = (magnitude + 0x00800080u & 0x40004000u) >> 14;
        uint32 scaled;
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(scaled) : "r"(magnitude | x & 0x80008000u), "r"(0x5c005c00u));
        return scaled | nan * 0x7fffu;
    }
};

// The upper half of an fp16.
struct e5m2 {
    uint8 bits;

    static __device__ void widen(uint32 (&pairs)[2], uint32 four) {
        pairs[0] = __byte_perm(four, 0, 0x1404);
        pairs[1] = __byte_perm(four, 0, 0x3424);
    }
};

}  // namespace attnsmith
