// What op append makes of a row, in the order of docs/numerics.md: every operation is one of fp32, rounded to
// nearest even, so that a kernel has to give the same bits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "attnsmith/spec.hpp"

namespace attnsmith::check {

// x / sqrt(mean of squares + eps), by the weights unless there are none.
std::vector<float> normalised(const std::vector<float>& row, const std::vector<float>& weights, float eps);

// The cosines of a position, and then its sines, from frequencies.
std::vector<float> angles_of(std::int64_t position, const std::vector<float>& frequencies, float factor);

// The first cos_sin.size() columns, rotated.
std::vector<float> rotated(std::vector<float> row, Rope rope, const std::vector<float>& cos_sin);

// The scale that is computed for values which are stored in 8 bits, one of a row's or of a block's: the
// largest magnitude over the largest number of the type, 1 where all are 0, NaN where one is none or
// infinite.
float computed_scale(DType dtype, std::span<const float> values);

// As what is stored as one of the 16-bit types or an 8-bit one, which is times 1 / scale where there is one.
std::uint16_t stored(DType dtype, float value, std::optional<float> scale);

}  // namespace attnsmith::check
