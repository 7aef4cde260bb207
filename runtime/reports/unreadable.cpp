#include "reports/unreadable.hpp"

#include <fmt/format.h>

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

}  // namespace attnsmith::engine
