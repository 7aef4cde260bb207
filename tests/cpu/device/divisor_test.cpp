// The division that kernels do with a product, against the host's own.
#include "abi/divisor.h"

#include <cstdint>

#include "support/catch.hpp"

using namespace attnsmith;

TEST_CASE("a launch's divisors divide every number below 2^31", "[device]") {
    constexpr std::uint32_t kEnd = 1U << 31;
    const auto check = [](std::int32_t value) {
        const abi::Divisor by = abi::divisor_of(value);
        REQUIRE(by == value);
        const auto plain = static_cast<std::uint32_t>(value);
        const auto agree = [&](std::uint32_t n) {
            CAPTURE(value, n);
            REQUIRE(n / by == n / plain);
            REQUIRE(n % by == n % plain);
            REQUIRE(static_cast<std::int32_t>(n) / by == static_cast<std::int32_t>(n) / value);
            REQUIRE(static_cast<std::int32_t>(n) % by == static_cast<std::int32_t>(n) % value);
        };
        // Where the quotient changes, near 0 and near the end, and between them.
        for (std::uint64_t near = 0; near < kEnd; near = near * 3 + 1) {
            const auto n = static_cast<std::uint32_t>(near);
            agree(n);
            agree(n / plain * plain);
            if (n / plain > 0) agree(n / plain * plain - 1);
        }
        agree(kEnd - 1);
        agree((kEnd - 1) / plain * plain);
        if ((kEnd - 1) / plain > 0) agree((kEnd - 1) / plain * plain - 1);
    };
    for (std::int32_t value = 1; value <= 2000; ++value) check(value);
    for (int shift = 11; shift < 31; ++shift)
        for (const int beside : {-1, 0, 1}) check((1 << shift) + beside);
    check(0x7fffffff);
}

TEST_CASE("by 0, for what is not there, there is a divisor as well", "[device]") {
    CHECK(abi::divisor_of(0) == 0);
}
