// Floats of 16 and of 8 bits as the reference sees them: bit patterns to and from double, rounded to nearest
// even in one step.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "attnsmith/types.hpp"

namespace attnsmith::check {

// `dtype` is f16, bf16, e4m3 or e5m2; a pattern of 8 bits has its upper byte 0. Values past the largest
// finite one become infinity in 16 bits and that largest one in 8, as quantisers leave it. An infinity is one
// where the dtype has one, which e4m3 has not.
std::uint16_t encode(DType dtype, double value);
double decode(DType dtype, std::uint16_t bits);

// The value of every bit pattern, 65536 or 256 entries: whole tensors are converted through it.
const double* decode_table(DType dtype);

namespace detail {

// Clears the lowest `dropped` bits of the significand, to nearest even. A carry into the exponent is what is
// wanted.
inline double drop_bits(double value, int dropped) {
    auto bits = std::bit_cast<std::uint64_t>(value);
    bits += ((bits >> dropped) & 1) + ((std::uint64_t{1} << (dropped - 1)) - 1);
    return std::bit_cast<double>(bits & ~((std::uint64_t{1} << dropped) - 1));
}

// Adding and subtracting 1.5 * 2^52 quanta rounds to whole quanta: the spacing of subnormals.
inline double round_to_quantum(double value, double quantum) {
    const double magic = 0x1.8p52 * quantum;
    return (value + magic) - magic;
}

}  // namespace detail

// decode(encode(value)) of f16 or bf16, fast enough for every logit of a case.
inline double round_to(DType dtype, double value) {
    if (std::isnan(value)) return value;
    const double magnitude = std::fabs(value);
    const bool half = dtype == DType::fp16;
    if (magnitude < (half ? 0x1p-14 : 0x1p-126)) {
        return std::copysign(detail::round_to_quantum(value, half ? 0x1p-24 : 0x1p-133), value);
    }
    const double rounded = detail::drop_bits(value, half ? 42 : 45);
    const double limit = half ? 0x1p16 : 0x1p128;
    return std::fabs(rounded) >= limit ? std::copysign(HUGE_VAL, value) : rounded;
}

}  // namespace attnsmith::check
