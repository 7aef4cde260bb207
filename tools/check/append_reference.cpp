#include "check/append_reference.hpp"

#include <cmath>
#include <cstddef>
#include <limits>

#include "check/small_floats.hpp"

namespace attnsmith::check {
namespace {

constexpr std::size_t kChunk = 8;  // columns that are added in their order

float chunk_of_squares(const std::vector<float>& row, std::size_t first) {
    float sum = row[first] * row[first];
    for (std::size_t i = first + 1; i < first + kChunk; ++i) sum = std::fma(row[i], row[i], sum);
    return sum;
}

// Chunks 32 apart first, of rows that have so many; then those that are 1 apart, 2, 4, ...
float sum_of_squares(const std::vector<float>& row) {
    const std::size_t chunks = row.size() / kChunk;
    std::size_t lanes = 1;
    while (lanes < 32 && lanes < chunks) lanes *= 2;
    std::vector<float> sums(lanes);
    for (std::size_t lane = 0; lane < lanes; ++lane) {
        if (lane < chunks) sums[lane] = chunk_of_squares(row, lane * kChunk);
        if (lane + lanes < chunks) sums[lane] += chunk_of_squares(row, (lane + lanes) * kChunk);
    }
    for (std::size_t distance = 1; distance < lanes; distance *= 2) {
        std::vector<float> next(lanes);
        for (std::size_t lane = 0; lane < lanes; ++lane) next[lane] = sums[lane] + sums[lane ^ distance];
        sums = next;
    }
    return sums[0];
}

struct Format8 {
    int significand_bits, bias;
    double largest;
};

Format8 format_of(DType dtype) {
    return dtype == DType::e4m3 ? Format8{3, 7, 448} : Format8{2, 15, 57344};
}

}  // namespace

std::vector<float> normalised(const std::vector<float>& row, const std::vector<float>& weights, float eps) {
    const float mean = sum_of_squares(row) * (1.0f / static_cast<float>(row.size()));
    const float root = std::sqrt(mean + eps);
    const float factor = 1.0f / root;
    std::vector<float> result(row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
        result[i] = row[i] * factor;
        if (!weights.empty()) result[i] = result[i] * weights[i];
    }
    return result;
}

// The library's sine and cosine, in fp64 and rounded once: their errors are far below the last bit of fp32.
std::vector<float> angles_of(std::int64_t position, const std::vector<float>& frequencies, float factor) {
    const std::size_t half = frequencies.size();
    std::vector<float> cos_sin(2 * half);
    for (std::size_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(position) * frequencies[i];
        const auto cosine = static_cast<float>(std::cos(static_cast<double>(angle)));
        const auto sine = static_cast<float>(std::sin(static_cast<double>(angle)));
        cos_sin[i] = cosine * factor;
        cos_sin[half + i] = sine * factor;
    }
    return cos_sin;
}

std::vector<float> rotated(std::vector<float> row, Rope rope, const std::vector<float>& cos_sin) {
    const std::size_t half = cos_sin.size() / 2;
    for (std::size_t i = 0; i < half; ++i) {
        float& first = row[rope == Rope::half ? i : 2 * i];
        float& second = row[rope == Rope::half ? i + half : 2 * i + 1];
        const float cosine = cos_sin[i], sine = cos_sin[half + i];
        const float a = first * cosine, b = second * sine, c = second * cosine, d = first * sine;
        first = a - b;
        second = c + d;
    }
    return row;
}

std::uint16_t stored(DType dtype, float value, std::optional<float> scale) {
    if (scale) {
        const bool ordinary = *scale >= std::numeric_limits<float>::min() && std::isfinite(*scale);
        const float inverse = ordinary ? 1.0f / *scale : std::numeric_limits<float>::quiet_NaN();
        value = value * inverse;
    }
    return is_fp8(dtype) ? encode_float8(dtype, value) : encode(dtype, static_cast<double>(value));
}

double decode_float8(DType dtype, std::uint8_t bits) {
    const Format8 format = format_of(dtype);
    const int exponent = (bits & 0x7f) >> format.significand_bits;
    const int significand = bits & ((1 << format.significand_bits) - 1);
    const double sign = (bits & 0x80) != 0 ? -1.0 : 1.0;
    const double magnitude =
        exponent == 0
            ? std::ldexp(significand, 1 - format.bias - format.significand_bits)
            : std::ldexp((1 << format.significand_bits) + significand,
                         exponent - format.bias - format.significand_bits);
    if (magnitude <= format.largest) return sign * magnitude;
    if (dtype == DType::e5m2 && significand == 0) return sign * std::numeric_limits<double>::infinity();
    return std::numeric_limits<double>::quiet_NaN();
}

// By looking through all that there are.
std::uint8_t encode_float8(DType dtype, float value) {
    const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80 : 0);
    if (std::isnan(value)) return static_cast<std::uint8_t>(sign | 0x7f);
    const double magnitude = std::fabs(static_cast<double>(value));
    std::uint8_t best = 0;
    double distance = magnitude;
    for (std::uint8_t bits = 1; bits < 0x7f; ++bits) {
        const double of_bits = std::fabs(decode_float8(dtype, bits) - magnitude);
        if (!std::isfinite(decode_float8(dtype, bits))) break;
        if (of_bits < distance || (of_bits == distance && bits % 2 == 0)) {
            best = bits;
            distance = of_bits;
        }
    }
    return static_cast<std::uint8_t>(sign | best);
}

}  // namespace attnsmith::check
