// fp32 arithmetic in base 2. PTX: ex2.approx (2 ulp), lg2.approx, rcp.approx (1 ulp).
#pragma once

#include "abi/integers.h"

namespace attnsmith {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;

__device__ inline float infinity() { return __int_as_float(0x7f800000); }
__device__ inline float not_a_number() { return __int_as_float(0x7fffffff); }

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

// tanh to 9e-7 relative and 2.4e-7 absolute, with the errors that PTX allows ex2.approx (2 ulp) and
// rcp.approx (1 ulp); the worst is just past |x| = 1/4, where the series ends. tanh.approx keeps only 11
// bits, too few once a softcap multiplies them, and 1 - 2 / (1 + exp(2x)) alone has an absolute error, which
// a large cap would make visible in small logits.
struct FastTanh {
    static __device__ float of(float x) {
        const float far = 1.0f - 2.0f * reciprocal(1.0f + exp2_approx(x * (2.0f * kLog2e)));
        const float y = x * x;
        float series = fmaf(y, 62.0f / 2835.0f, -17.0f / 315.0f);
        series = fmaf(y, series, 2.0f / 15.0f);
        series = fmaf(y, series, -1.0f / 3.0f);
        return y < 0.0625f ? fmaf(x * y, series, x) : far;
    }
};

// tanh to 2 ulp, for precision "high": a softcap of 50 leaves 4e-6 of an error of 1e-7.
struct PreciseTanh {
    static __device__ float of(float x) { return tanhf(x); }
};

// 2^exponent, and 0 where that is 32 or more, for which C++ leaves a shift undefined.
__device__ inline uint32 power_of_two(uint32 exponent) {
    uint32 power;
    asm("shl.b32 %0, 1, %1;" : "=r"(power) : "r"(exponent));
    return power;
}

}  // namespace attnsmith
