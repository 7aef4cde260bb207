// Floats of 8 bits as they are stored: 3 bits of significand are e4m3 (no infinities, 448 the largest), 2 are
// e5m2 (57344 the largest finite one). PTX: cvt.rn.satfinite, which sm_89 brought.
#pragma once

#include "abi/integers.h"

namespace attnsmith {

#if __CUDA_ARCH__ >= 900 || \
    (__CUDA_ARCH__ >= 890 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1201)
inline constexpr bool kConvertsToFloat8 = true;
#else
inline constexpr bool kConvertsToFloat8 = false;
#endif

// To nearest even; what is larger than the largest finite number becomes that number, and a NaN stays one.
template <int SignificandBits>
struct Float8 {
    static_assert(SignificandBits == 3 || SignificandBits == 2, "e4m3 or e5m2");

    // Two values, `low` in the lower byte.
    static __device__ uint32 pack(float low, float high) {
        if constexpr (kConvertsToFloat8)
            return convert(low, high);
        else
            return encode(low) | encode(high) << 8;
    }

    // The same in integers, for SMs without the instruction.
    static __device__ uint32 encode(float value) {
        constexpr int kDropped = 23 - SignificandBits;
        constexpr int kBias = SignificandBits == 3 ? 7 : 15;
        constexpr uint32 kLargest = SignificandBits == 3 ? 0x7e : 0x7b;
        const uint32 bits = __float_as_uint(value), magnitude = bits & 0x7fffffffu;
        const uint32 sign = bits >> 24 & 0x80;
        if (magnitude > 0x7f800000u) return sign | 0x7f;
        // Below the least normal number a sum rounds to whole quanta, which its lowest bits count.
        constexpr uint32 kLeastNormal = uint32(127 + 1 - kBias) << 23;
        constexpr uint32 kQuanta = uint32(127 + 1 - kBias - SignificandBits + 23) << 23;
        if (magnitude < kLeastNormal)
            return sign | (__float_as_uint(__fadd_rn(__uint_as_float(magnitude), __uint_as_float(kQuanta))) -
                           kQuanta);
        const uint32 rounded = magnitude + (magnitude >> kDropped & 1) + ((1u << (kDropped - 1)) - 1);
        const uint32 code = (rounded >> kDropped) - (uint32(127 - kBias) << SignificandBits);
        return sign | (code < kLargest ? code : kLargest);
    }

  private:
    static __device__ uint32 convert(float low, float high) {
        uint16 packed = 0;
#if __CUDA_ARCH__ >= 900 || \
    (__CUDA_ARCH__ >= 890 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1201)
        if constexpr (SignificandBits == 3)
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
        else
            asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
#endif
        return packed;
    }
};

}  // namespace attnsmith
