#include "cache/remote/http_date.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>

namespace attnsmith::cache {
namespace {

constexpr std::array<std::string_view, 7> kWeekdays = {"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"};
constexpr std::array<std::string_view, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                      "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

constexpr int kFirstYear = 1970;
constexpr int kLastYear = 2199;

// Digits alone: from_chars would take a sign.
std::optional<int> number_in(std::string_view digits) {
    int number = 0;
    for (const char digit : digits) {
        if (digit < '0' || digit > '9') return std::nullopt;
        number = number * 10 + (digit - '0');
    }
    return number;
}

template <std::size_t N>
bool has_word(const std::array<std::string_view, N>& words, std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

std::optional<std::chrono::system_clock::time_point> parse_http_date(std::string_view text) {
    constexpr std::string_view kForm = "www, dd mmm yyyy hh:mm:ss GMT";
    if (text.size() != kForm.size()) return std::nullopt;
    for (std::size_t i = 0; i < kForm.size(); ++i) {
        const bool is_value = kForm[i] >= 'a' && kForm[i] <= 'z';
        if (!is_value && text[i] != kForm[i]) return std::nullopt;
    }
    const auto day = number_in(text.substr(5, 2)), year = number_in(text.substr(12, 4));
    const auto hour = number_in(text.substr(17, 2)), minute = number_in(text.substr(20, 2)),
               second = number_in(text.substr(23, 2));
    const auto month = std::find(kMonths.begin(), kMonths.end(), text.substr(8, 3));
    if (!day || !year || !hour || !minute || !second || month == kMonths.end()) return std::nullopt;
    if (!has_word(kWeekdays, text.substr(0, 3))) return std::nullopt;
    const std::chrono::year_month_day date(
        std::chrono::year(*year), std::chrono::month(static_cast<unsigned>(month - kMonths.begin() + 1)),
        std::chrono::day(static_cast<unsigned>(*day)));
    constexpr int kLeapSecond = 60;
    if (*year < kFirstYear || *year > kLastYear) return std::nullopt;
    if (!date.ok() || *hour > 23 || *minute > 59 || *second > kLeapSecond) return std::nullopt;
    return std::chrono::sys_days(date) + std::chrono::hours(*hour) + std::chrono::minutes(*minute) +
           std::chrono::seconds(*second);
}

std::chrono::seconds parse_http_age(std::string_view text) {
    constexpr std::int64_t kMost = std::int64_t{365} * 24 * 60 * 60;
    std::int64_t seconds = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (error != std::errc() || end != text.data() + text.size() || seconds < 0) return {};
    return std::chrono::seconds(std::min(seconds, kMost));
}

}  // namespace attnsmith::cache
