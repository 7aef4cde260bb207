#include "reports/deletions.hpp"

#include <fmt/format.h>

#include "attnsmith/error.hpp"

namespace attnsmith::engine {
namespace {

void require_deleted(const cache::Status& status, bool anything) {
    if (status.ok()) return;
    throw CacheError(
        fmt::format("{} could be deleted: {}", anything ? "not everything" : "nothing", status.to_string()));
}

}  // namespace

void require_cleared(const cache::ClearReport& report) {
    require_deleted(report.status, report.entries + report.quarantined + report.staging + report.locks > 0);
}

void require_removed(const cache::RemoveReport& report) {
    require_deleted(report.status, report.entries > 0);
    if (report.entries > 0 || report.left == 0) return;
    throw CacheError(
        fmt::format("nothing was deleted: {} of its entries {} in read-only layers only, which are "
                    "not written to",
                    report.left, report.left == 1 ? "is" : "are"));
}

void require_collected(const cache::EvictionReport& report) {
    if (report.busy) {
        throw CacheError("nothing was deleted: another process is evicting from this directory; try again");
    }
    const bool anything = report.entries + report.quarantined + report.staging + report.locks > 0;
    require_deleted(report.status, anything);
    require_deleted(report.leftover_status, anything);
}

}  // namespace attnsmith::engine
