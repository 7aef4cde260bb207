#include "check/append_reference.hpp"

#include <algorithm>
#include <bit>
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

float computed_scale(DType dtype, std::span<const float> values) {
    constexpr std::uint32_t kNaN = 0x7fffffff;  // the one that kernels write
    float largest = 0;
    for (const float value : values) {
        if (!std::isfinite(value)) return std::bit_cast<float>(kNaN);
        largest = std::max(largest, std::fabs(value));
    }
    if (largest == 0) return 1;
    const float most = dtype == DType::e4m3 ? 448.0f : 57344.0f;
    return std::max(largest / most, std::numeric_limits<float>::min());
}

std::uint16_t stored(DType dtype, float value, std::optional<float> scale) {
    if (scale) {
        const bool ordinary = *scale >= std::numeric_limits<float>::min() && std::isfinite(*scale);
        const float inverse = ordinary ? 1.0f / *scale : std::numeric_limits<float>::quiet_NaN();
        value = value * inverse;
    }
    // In 8 bits infinities, too, become the largest finite number.
    constexpr float kLargest = std::numeric_limits<float>::max();
    if (is_fp8(dtype) && std::isinf(value)) value = std::copysign(kLargest, value);
    return encode(dtype, static_cast<double>(value));
}

}  // namespace attnsmith::check
