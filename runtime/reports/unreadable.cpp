#include "reports/unreadable.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace attnsmith::engine {

std::vector<CacheUnreadable> report_of(std::span<const cache::Status> unreadable) {
    std::vector<CacheUnreadable> report;
    for (const cache::Status& one : unreadable) report.push_back({one.path, one.message});
    return report;
}

std::string unreadable_text(std::span<const CacheUnreadable> unreadable) {
    const auto& [path, reason] = unreadable.front();
    const std::size_t more = unreadable.size() - 1;
    return fmt::format("not everything could be read: {}{}{}{}", reason, path.empty() ? "" : ": ", path,
                       more == 0 ? "" : fmt::format(" (and {} more)", more));
}

std::string unreadable_text(std::span<const cache::Status> unreadable) {
    return unreadable_text(report_of(unreadable));
}

nlohmann::ordered_json unreadable_json(std::span<const CacheUnreadable> unreadable) {
    auto json = nlohmann::ordered_json::array();
    for (const auto& [path, reason] : unreadable) json.push_back({{"path", path}, {"reason", reason}});
    return json;
}

}  // namespace attnsmith::engine
