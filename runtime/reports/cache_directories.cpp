#include "reports/cache_directories.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace attnsmith::engine {

void require_directories(const Settings& settings, std::string_view remedy) {
    if (settings.cache_dirs.empty()) {
        throw CacheError(
            fmt::format("there is no cache directory ({}): {}", remedy, settings.no_cache_because));
    }
    for (const std::string& place : settings.cache_dirs) {
        std::error_code ignored;
        const auto status = std::filesystem::status(place, ignored);
        if (!std::filesystem::exists(status) || std::filesystem::is_directory(status)) continue;
        if (&place == &settings.cache_dirs.front()) {
            throw InvalidRequest(settings.cache_dirs_named_by, place, "a directory; bundles can follow it");
        }
        if (!std::filesystem::is_regular_file(status)) {
            throw InvalidRequest(settings.cache_dirs_named_by, place, "a directory or a bundle");
        }
    }
}

bool is_missing(const std::string& path) {
    std::error_code error;
    return std::filesystem::status(path, error).type() == std::filesystem::file_type::not_found;
}

}  // namespace attnsmith::engine
