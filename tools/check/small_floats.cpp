#include "check/small_floats.hpp"

#include <limits>
#include <stdexcept>
#include <vector>

namespace attnsmith::check {
namespace {

struct Format {
    int significand_bits;  // stored ones
    int exponent_bits;
    std::uint16_t largest;   // the pattern of the largest finite magnitude
    std::uint16_t overflow;  // of what lies past it
    std::uint16_t nan;
    bool has_infinity = true;

    int bias() const { return (1 << (exponent_bits - 1)) - 1; }
    int bits() const { return 1 + exponent_bits + significand_bits; }
    std::uint16_t sign() const { return static_cast<std::uint16_t>(1 << (bits() - 1)); }
    std::uint16_t infinity() const {
        return has_infinity ? static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << significand_bits)
                            : largest;
    }
};

constexpr Format kHalf{10, 5, 0x7bff, 0x7c00, 0x7e00};
constexpr Format kBfloat{7, 8, 0x7f7f, 0x7f80, 0x7fc0};
// OCP 8-bit Floating Point Specification 1.0, table 1: e4m3 gives infinity's patterns but one to numbers.
constexpr Format kE4m3{3, 4, 0x7e, 0x7e, 0x7f, false};
constexpr Format kE5m2{2, 5, 0x7b, 0x7b, 0x7f};

const Format& format_of(DType dtype) {
    switch (dtype) {
        case DType::fp16:
            return kHalf;
        case DType::bf16:
            return kBfloat;
        case DType::e4m3:
            return kE4m3;
        case DType::e5m2:
            return kE5m2;
        default:
            throw std::logic_error("no float of 16 or 8 bits");
    }
}

std::uint16_t encode_magnitude(const Format& format, double magnitude) {
    if (magnitude == 0) return 0;
    const int exponent = std::ilogb(magnitude);
    const int smallest = 1 - format.bias();
    if (exponent > format.bias() + 1) return format.overflow;
    const int scale_exponent = exponent < smallest ? smallest : exponent;
    // In units of the last place; std::nearbyint rounds to even in the default mode.
    const auto units = static_cast<std::int64_t>(
        std::nearbyint(std::ldexp(magnitude, format.significand_bits - scale_exponent)));
    // Exponent field 0 and 1 have the same unit, and a carry out of the significand raises the exponent by
    // itself.
    const std::int64_t field = exponent < smallest ? 0 : scale_exponent + format.bias() - 1;
    const std::int64_t bits = (field << format.significand_bits) + units;
    return bits > format.largest ? format.overflow : static_cast<std::uint16_t>(bits);
}

std::vector<double> make_table(DType dtype) {
    std::vector<double> table(std::size_t{1} << format_of(dtype).bits());
    for (std::size_t bits = 0; bits < table.size(); ++bits)
        table[bits] = decode(dtype, static_cast<std::uint16_t>(bits));
    return table;
}

}  // namespace

std::uint16_t encode(DType dtype, double value) {
    const Format& format = format_of(dtype);
    const std::uint16_t sign = std::signbit(value) ? format.sign() : 0;
    if (std::isnan(value)) return static_cast<std::uint16_t>(sign | format.nan);
    if (std::isinf(value)) return static_cast<std::uint16_t>(sign | format.infinity());
    return static_cast<std::uint16_t>(sign | encode_magnitude(format, std::fabs(value)));
}

double decode(DType dtype, std::uint16_t bits) {
    const Format& format = format_of(dtype);
    const int magnitude = bits & (format.sign() - 1);
    const int exponent = magnitude >> format.significand_bits;
    const int significand = magnitude & ((1 << format.significand_bits) - 1);
    const double sign = bits & format.sign() ? -1.0 : 1.0;
    if (magnitude > format.largest)
        return format.has_infinity && magnitude == format.infinity()
                   ? sign * HUGE_VAL
                   : std::numeric_limits<double>::quiet_NaN();
    const int hidden = exponent ? 1 << format.significand_bits : 0;
    const int unit = (exponent ? exponent : 1) - format.bias() - format.significand_bits;
    return sign * std::ldexp(significand + hidden, unit);
}

const double* decode_table(DType dtype) {
    static const std::vector<double> half = make_table(DType::fp16), bfloat = make_table(DType::bf16),
                                     e4m3 = make_table(DType::e4m3), e5m2 = make_table(DType::e5m2);
    const auto& table = dtype == DType::fp16   ? half
                        : dtype == DType::bf16 ? bfloat
                        : dtype == DType::e4m3 ? e4m3
                                               : e5m2;
    return table.data();
}

}  // namespace attnsmith::check
