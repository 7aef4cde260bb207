// Floats of 8 bits by the tables of their specification, and the quantiser against the nearest of all codes.
#include "check/small_floats.hpp"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "check/quantiser.hpp"
#include "check/random.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using namespace attnsmith::check;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The finite magnitudes' codes, which are those from 0 to this one.
constexpr std::uint16_t largest_code(DType dtype) { return dtype == DType::e4m3 ? 0x7e : 0x7b; }

// What is stored for a number, by looking at all codes; of two that are as near it is the even one.
std::uint16_t nearest(DType dtype, double value) {
    std::uint16_t best = 0;
    for (std::uint16_t code = 0; code <= largest_code(dtype); ++code) {
        const double now = std::fabs(decode(dtype, code) - std::fabs(value));
        const double before = std::fabs(decode(dtype, best) - std::fabs(value));
        if (now < before || (now == before && code % 2 == 0)) best = code;
    }
    return static_cast<std::uint16_t>(best | (std::signbit(value) ? 0x80 : 0));
}

}  // namespace

TEST_CASE("floats of 8 bits: the values that the specification names", "[check]") {
    const std::pair<std::uint16_t, double> of_e4m3[] = {{0x00, 0.0},    {0x01, 0x1p-9}, {0x07, 0x1.cp-7},
                                                        {0x08, 0x1p-6}, {0x38, 1.0},    {0x3c, 1.5},
                                                        {0x78, 256.0},  {0x7e, 448.0},  {0xfe, -448.0}};
    for (const auto& [code, value] : of_e4m3) CHECK(decode(DType::e4m3, code) == value);
    const std::pair<std::uint16_t, double> of_e5m2[] = {
        {0x00, 0.0},  {0x01, 0x1p-16}, {0x03, 0x1.8p-15}, {0x04, 0x1p-14},   {0x3c, 1.0},
        {0x3d, 1.25}, {0x7b, 57344.0}, {0x7c, kInfinity}, {0xfc, -kInfinity}};
    for (const auto& [code, value] : of_e5m2) CHECK(decode(DType::e5m2, code) == value);
    for (const std::uint16_t code : {0x7f, 0xff}) CHECK(std::isnan(decode(DType::e4m3, code)));
    for (const std::uint16_t code : {0x7d, 0x7e, 0x7f, 0xfd, 0xfe, 0xff})
        CHECK(std::isnan(decode(DType::e5m2, code)));
    CHECK(std::signbit(decode(DType::e4m3, 0x80)));
}

TEST_CASE("floats of 8 bits: every code comes back, and 16 bits have each", "[check]") {
    for (const DType dtype : {DType::e4m3, DType::e5m2}) {
        for (std::uint16_t code = 0; code < 256; ++code) {
            const double value = decode(dtype, code);
            CHECK((decode_table(dtype)[code] == value || std::isnan(value)));
            if (std::isnan(value)) {
                CHECK(std::isnan(decode(dtype, encode(dtype, value))));
                continue;
            }
            CHECK(encode(dtype, value) == code);
            for (const DType wide : {DType::fp16, DType::bf16})
                CHECK(decode(wide, encode(wide, value)) == value);
        }
    }
}

TEST_CASE("floats of 8 bits: halves go to the even code, and what is nearer to the nearer one", "[check]") {
    for (const DType dtype : {DType::e4m3, DType::e5m2}) {
        for (std::uint16_t code = 0; code < largest_code(dtype); ++code) {
            const double low = decode(dtype, code), high = decode(dtype, code + 1), half = (low + high) / 2;
            const std::uint16_t even = code % 2 == 0 ? code : code + 1;
            CHECK(encode(dtype, half) == even);
            CHECK(encode(dtype, -half) == (even | 0x80));
            CHECK(encode(dtype, std::nextafter(half, low)) == code);
            CHECK(encode(dtype, std::nextafter(half, high)) == code + 1);
        }
    }
}

TEST_CASE("floats of 8 bits: what is past the largest becomes the largest", "[check]") {
    for (const DType dtype : {DType::e4m3, DType::e5m2}) {
        const std::uint16_t largest = largest_code(dtype);
        const double step = decode(dtype, largest) - decode(dtype, largest - 1);
        for (const double past : {step / 2, step, 10 * step, 1e30}) {
            CHECK(encode(dtype, decode(dtype, largest) + past) == largest);
            CHECK(encode(dtype, -decode(dtype, largest) - past) == (largest | 0x80));
        }
        CHECK(encode(dtype, 0x1p-40) == 0);
        CHECK(encode(dtype, -0x1p-40) == 0x80);
        CHECK(std::isnan(decode(dtype, encode(dtype, std::nan("")))));
    }
    CHECK(encode(DType::e4m3, kInfinity) == 0x7e);
    CHECK(encode(DType::e5m2, kInfinity) == 0x7c);
    CHECK(encode(DType::e5m2, -kInfinity) == 0xfc);
}

TEST_CASE("the quantiser stores what is nearest to a number over its scale", "[check]") {
    Random random(3);
    for (const DType from : {DType::fp16, DType::bf16}) {
        for (const DType to : {DType::e4m3, DType::e5m2}) {
            for (const double scale : {1.0, 0.02, 3.0, 0.001}) {
                const Quantiser quantiser(from, to, scale);
                std::vector<std::uint16_t> row;
                for (int n = 0; n < 500; ++n) row.push_back(encode(from, random.uniform(-4, 4)));
                row.push_back(encode(from, std::nan("")));
                std::vector<std::uint8_t> stored(row.size());
                quantiser.quantise(row.data(), static_cast<std::int64_t>(row.size()), stored.data());
                CHECK(std::isnan(decode(to, stored.back())));
                bool all_nearest = true;
                for (std::size_t n = 0; n + 1 < row.size(); ++n)
                    all_nearest = all_nearest && stored[n] == nearest(to, decode(from, row[n]) / scale);
                CHECK(all_nearest);
            }
        }
    }
}
