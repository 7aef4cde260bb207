#include "engine/settings/entry_times.hpp"

#include <chrono>
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
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now() - time).count();
}

}  // namespace attnsmith::engine
