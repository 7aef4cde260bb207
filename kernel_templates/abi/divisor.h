// What a launch divides by, again and again: a product and a shift, where the GPU takes some twenty
// instructions to divide by a number that the compiler does not know.
#pragma once

#include "abi/integers.h"

namespace attnsmith::abi {

struct Divisor {
    int32 value;
    uint32 magic;  // n / value is n * magic >> 31 >> shift
    int32 shift;

    ATTNSMITH_HOST_DEVICE constexpr operator int32() const { return value; }
};

// n is from 0 to 2^31 - 1: its product with the magic's error is less than 2^(31 + shift) then.
ATTNSMITH_HOST_DEVICE constexpr uint32 operator/(uint32 n, const Divisor& by) {
    return uint32(uint64(n * 2) * by.magic >> 32) >> by.shift;
}
// The same by the GPU's own function for upper halves: in some kernels it takes a register less, in others
// one more.
ATTNSMITH_HOST_DEVICE inline uint32 divided(uint32 n, const Divisor& by) {
#ifdef __CUDA_ARCH__
    return __umulhi(n * 2, by.magic) >> by.shift;
#else
    return n / by;
#endif
}
ATTNSMITH_HOST_DEVICE constexpr uint32 operator%(uint32 n, const Divisor& by) {
    return n - n / by * uint32(by.value);
}
ATTNSMITH_HOST_DEVICE constexpr int32 operator/(int32 n, const Divisor& by) { return int32(uint32(n) / by); }
ATTNSMITH_HOST_DEVICE constexpr int32 operator%(int32 n, const Divisor& by) { return int32(uint32(n) % by); }

// `value`: below 2^31. By 0, which stands for what is not there, nobody divides.
ATTNSMITH_HOST_DEVICE constexpr Divisor divisor_of(int32 value) {
    if (value <= 0) return {value, 0, 0};
    int32 shift = 0;
    while (uint32(1) << shift < uint32(value)) ++shift;
    return {value, uint32((uint64(1) << (31 + shift)) / uint32(value) + 1), shift};
}

}  // namespace attnsmith::abi
