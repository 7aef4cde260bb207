#include "check/half.hpp"

#include <limits>
#include <vector>

namespace attnsmith::check {
namespace {

struct Format {
    int significand_bits;  // stored ones
    int exponent_bits;

    int bias() const { return (1 << (exponent_bits - 1)) - 1; }
    std::uint16_t infinity() const {
        return static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << significand_bits);
    }
};

constexpr Format kHalf{10, 5};
constexpr Format kBfloat{7, 8};

const Format& format_of(DType dtype) { return dtype == DType::f16 ? kHalf : kBfloat; }

std::uint16_t encode_magnitude(const Format& format, double magnitude) {
    if (magnitude == 0) return 0;
    const int exponent = std::ilogb(magnitude);
    const int smallest = 1 - format.bias();
    if (exponent > format.bias()) return format.infinity();
    const int scale_exponent = exponent < smallest ? smallest : exponent;
    // In units of the last place; std::nearbyint rounds to even in the default mode.
    const auto units = static_cast<std::int64_t>(
        std::nearbyint(std::ldexp(magnitude, format.significand_bits - scale_exponent)));
    // Exponent field 0 and 1 have the same unit, and a carry out of the significand raises the exponent by
    // itself.
    const std::int64_t field = exponent < smallest ? 0 : scale_exponent + format.bias() - 1;
    const std::int64_t bits = (field << format.significand_bits) + units;
    return bits >= format.infinity() ? format.infinity() : static_cast<std::uint16_t>(bits);
}

std::vector<double> make_table(DType dtype) {
    std::vector<double> table(65536);
    for (std::size_t bits = 0; bits < table.size(); ++bits)
        table[bits] = decode(dtype, static_cast<std::uint16_t>(bits));
    return table;
}

}  // namespace

std::uint16_t encode(DType dtype, double value) {
    const Format& format = format_of(dtype);
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value))
        return static_cast<std::uint16_t>(sign | format.infinity() | 1u << (format.significand_bits - 1));
    if (std::isinf(value)) return static_cast<std::uint16_t>(sign | format.infinity());
    return static_cast<std::uint16_t>(sign | encode_magnitude(format, std::fabs(value)));
}

double decode(DType dtype, std::uint16_t bits) {
    const Format& format = format_of(dtype);
    const int exponent = (bits & 0x7fff) >> format.significand_bits;
    const int significand = bits & ((1 << format.significand_bits) - 1);
    const double sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == (1 << format.exponent_bits) - 1)
        return significand ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
    const int hidden = exponent ? 1 << format.significand_bits : 0;
    const int unit = (exponent ? exponent : 1) - format.bias() - format.significand_bits;
    return sign * std::ldexp(significand + hidden, unit);
}

const double* decode_table(DType dtype) {
    static const std::vector<double> half = make_table(DType::f16);
    static const std::vector<double> bfloat = make_table(DType::bf16);
    return (dtype == DType::f16 ? half : bfloat).data();
}

}  // namespace attnsmith::check
