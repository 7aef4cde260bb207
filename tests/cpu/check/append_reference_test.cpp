// The reference of op append, against what is known by heart.
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "check/append_reference.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using namespace attnsmith::check;

TEST_CASE("a norm divides by the root of the mean of squares", "[check][append]") {
    for (const std::size_t columns : {8, 72, 128, 264, 512}) {
        std::vector<float> row(columns, 3.0f), weights(columns, 0.5f);
        for (std::size_t i = 0; i < columns; i += 2) row[i] = -3.0f;
        const std::vector<float> plain = normalised(row, {}, 0.0f), weighted = normalised(row, weights, 0.0f);
        for (std::size_t i = 0; i < columns; ++i) {
            CHECK(std::fabs(plain[i] - (i % 2 ? 1.0f : -1.0f)) < 1e-6f);
            CHECK(weighted[i] == plain[i] * 0.5f);
        }
    }
}

TEST_CASE("a quarter of a turn swaps columns", "[check][append]") {
    const std::vector<float> row{1, 2, 3, 4, 5, 6, 7, 8};
    CHECK(rotated(row, Rope::half, {0, 0, 1, 1}) == std::vector<float>{-3, -4, 1, 2, 5, 6, 7, 8});
    CHECK(rotated(row, Rope::interleaved, {0, 0, 1, 1}) == std::vector<float>{-2, 1, -4, 3, 5, 6, 7, 8});
    CHECK(rotated(row, Rope::half, {1, 1, 0, 0}) == row);
}

TEST_CASE("angles are a position times a frequency", "[check][append]") {
    const std::vector<float> angles = angles_of(3, {0.0f, 0.5f}, 2.0f);
    CHECK(angles[0] == 2.0f);
    CHECK(angles[2] == 0.0f);
    CHECK(angles[1] == 2 * static_cast<float>(std::cos(1.5)));
    CHECK(angles[3] == 2 * static_cast<float>(std::sin(1.5)));
}

TEST_CASE("a computed scale maps the largest magnitude to the largest number", "[check][append]") {
    CHECK(computed_scale(DType::e4m3, std::vector{1.0f, -896.0f, 3.0f}) == 2.0f);
    CHECK(computed_scale(DType::e5m2, std::vector{-57344.0f, 3.0f}) == 1.0f);
    CHECK(computed_scale(DType::e4m3, std::vector{0.0f, -0.0f}) == 1.0f);
    CHECK(computed_scale(DType::e4m3, std::vector{0x1p-140f}) == 0x1p-126f);
    CHECK(computed_scale(DType::e4m3, std::vector{5.0f}) == 5.0f / 448.0f);
    CHECK(std::isnan(computed_scale(DType::e4m3, std::vector{1.0f, std::nanf("")})));
    CHECK(std::isnan(computed_scale(DType::e5m2, std::vector{-HUGE_VALF, 1.0f})));
    CHECK(stored(DType::e4m3, -896.0f, 2.0f) == 0xfe);
    CHECK((stored(DType::e4m3, 1.0f, std::nanf("")) & 0x7f) == 0x7f);
}

TEST_CASE("what is stored in 8 bits is rounded and at most the largest", "[check][append]") {
    const auto e4m3 = [](float value) { return stored(DType::e4m3, value, std::nullopt); };
    const auto e5m2 = [](float value) { return stored(DType::e5m2, value, std::nullopt); };
    CHECK(e4m3(1.0f) == 0x38);
    CHECK(e4m3(448.0f) == 0x7e);
    CHECK(e4m3(1e9f) == 0x7e);
    CHECK(e4m3(-HUGE_VALF) == 0xfe);
    CHECK(e4m3(0x1p-10f) == 0x00);   // half of the least: to even
    CHECK(e4m3(0x1.8p-9f) == 0x02);  // between 1 and 2 quanta
    CHECK(e4m3(17.0f) == 0x58);      // between 16 and 18
    CHECK((e4m3(std::nanf("")) & 0x7f) == 0x7f);
    CHECK(e5m2(1.0f) == 0x3c);
    CHECK(e5m2(57344.0f) == 0x7b);
    CHECK(e5m2(HUGE_VALF) == 0x7b);
    CHECK(stored(DType::e4m3, 3.0f, 2.0f) == e4m3(1.5f));
    CHECK((stored(DType::e4m3, 3.0f, 0.0f) & 0x7f) == 0x7f);
    CHECK((stored(DType::e4m3, 3.0f, -1.0f) & 0x7f) == 0x7f);
}
