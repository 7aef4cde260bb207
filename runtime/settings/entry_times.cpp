#include "settings/entry_times.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>

namespace attnsmith::engine {

std::string utc_text(cache::FileTime time) {
    const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
    std::tm utc{};
    if (::gmtime_r(&seconds, &utc) == nullptr) return {};  // the year does not fit an int
    char text[64];
    return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

std::int64_t age_seconds(cache::FileTime time) {
    const auto age = std::chrono::system_clock::now() - time;  // below zero where a clock was put back
    return std::max<std::int64_t>(std::chrono::duration_cast<std::chrono::seconds>(age).count(), 0);
}

}  // namespace attnsmith::engine
