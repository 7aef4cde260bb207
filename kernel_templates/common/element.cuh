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

}  // namespace attnsmith
