#include "cli/program/byte_size.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "attnsmith/error.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::cli {
namespace {

constexpr std::string_view kUnits = "kmgt";

// The power of 1024 that a unit is; nothing where it is none.
std::optional<int> power_of(std::string_view unit) {
    if (unit.empty()) return 0;
    std::string lower(unit);
    std::ranges::transform(lower, lower.begin(), [](char c) {
        return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    const std::size_t place = kUnits.find(lower[0]);
    const bool is_known = place != kUnits.npos && (lower.size() == 1 || lower.substr(1) == "ib");
    return is_known ? std::optional(static_cast<int>(place) + 1) : std::nullopt;
}

std::optional<std::uint64_t> parse(std::string_view text) {
    const std::size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
    const std::string_view number = text.substr(0, end);
    const std::optional<int> power = power_of(text.substr(end));
    if (number.empty() || !power) return std::nullopt;

    constexpr std::uint64_t kMost = (std::uint64_t{1} << 63) - 1;
    std::uint64_t whole = 0;
    const auto parsed = std::from_chars(number.data(), number.data() + number.size(), whole);
    if (parsed.ec == std::errc() && parsed.ptr == number.data() + number.size()) {
        if (whole > kMost >> (10 * *power)) return std::nullopt;
        return whole << (10 * *power);
    }
    // Half a byte is none.
    if (*power == 0 || number.front() == '.' || number.back() == '.') return std::nullopt;
    double fraction = 0;
    const auto decimal = std::from_chars(number.data(), number.data() + number.size(), fraction);
    if (decimal.ec != std::errc() || decimal.ptr != number.data() + number.size()) return std::nullopt;
    const double bytes = std::ldexp(fraction, 10 * *power);
    return bytes < 0x1p63 ? std::optional(static_cast<std::uint64_t>(bytes)) : std::nullopt;
}

}  // namespace

std::uint64_t parse_byte_size(const std::string& field, std::string_view text) {
    if (const auto bytes = parse(text)) return *bytes;
    throw InvalidRequest(field, problem::quote(text),
                         "a number of bytes below 2^63, or one with K, M, G or T: 512M, 1.5GiB");
}

}  // namespace attnsmith::cli
