// fp32 arithmetic in base 2. PTX: ex2.approx (2 ulp), lg2.approx, rcp.approx (1 ulp).
#pragma once

namespace attnsmith {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

__device__ inline float infinity() { return __int_as_float(0x7f800000); }

__device__ inline float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ inline float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// tanh to about 1e-7 absolute: tanh.approx keeps only 11 bits, too few once a softcap multiplies them.
__device__ inline float tanh_exact(float x) {
    return 1.0f - 2.0f * reciprocal(1.0f + exp2_approx(x * (2.0f * kLog2e)));
}

// Over the four lanes that hold one row of an mma accumulator.
__device__ inline float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ inline float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

}  // namespace attnsmith
