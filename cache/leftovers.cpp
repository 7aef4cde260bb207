#include "cache/leftovers.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "cache/entry_file.hpp"
#include "cache/layout.hpp"
#include "cache/lock.hpp"

namespace attnsmith::cache {
namespace {

// Far above any publish, and above what clocks differ by.
constexpr auto kStagingIsStaleAfter = std::chrono::hours(1);

Path path_in(const std::string& root, std::string_view directory, const std::string& name) {
    return {root, layout::in_directory(directory, name)};
}

bool remove_under_its_lock(FileSystem& files, const Path& path, const FileInfo& info, Remover& remover) {
    const Lock lock = acquire_lock(files, path, info.mode, std::chrono::nanoseconds::zero());
    return lock.held() && remover.remove(path, info);
}

}  // namespace

bool Remover::remove(const Path& path, const FileInfo& info) {
    Status status = files_.remove_file(path);
    if (status.ok()) {
        bytes_ += info.bytes;
        allocated_bytes_ += info.allocated_bytes;
        return true;
    }
    if (status.error_number != ENOENT) note_failure(std::move(status));
    return false;
}

void Remover::note_failure(Status status) {
    if (status_.ok()) status_ = std::move(status);
}

std::uint64_t remove_stale_staging_files(FileSystem& files, const std::string& root, Remover& remover) {
    const FileTime now = std::chrono::system_clock::now();
    std::uint64_t removed = 0;
    for (const NamedFile& file : list_files_if_any(files, {root, std::string(layout::kStagingDirectory)})) {
        const bool live = file.info.modified >= now - kStagingIsStaleAfter &&
                          file.info.modified <= now + kStagingIsStaleAfter;
        if (live || !layout::is_staging_name(file.name)) continue;
        removed += remover.remove(path_in(root, layout::kStagingDirectory, file.name), file.info) ? 1 : 0;
    }
    return removed;
}

std::uint64_t remove_quarantined(FileSystem& files, const std::string& root, std::uint64_t most_bytes,
                                 Remover& remover) {
    std::vector<NamedFile> found =
        list_files_if_any(files, {root, std::string(layout::kQuarantineDirectory)});
    std::erase_if(found, [](const NamedFile& file) { return !layout::is_quarantine_name(file.name); });
    std::sort(found.begin(), found.end(), [](const NamedFile& a, const NamedFile& b) {
        return a.info.modified > b.info.modified;  // the newest first
    });
    std::uint64_t kept = 0;
    std::uint64_t removed = 0;
    for (const NamedFile& file : found) {
        // An empty file is something, too.
        kept += std::max<std::uint64_t>(file.info.allocated_bytes, 1);
        if (kept <= most_bytes) continue;
        removed += remover.remove(path_in(root, layout::kQuarantineDirectory, file.name), file.info) ? 1 : 0;
    }
    return removed;
}

std::uint64_t remove_idle_lock_files(FileSystem& files, const std::string& root, FileTime oldest,
                                     Remover& remover) {
    std::uint64_t removed = 0;
    for (const NamedFile& file : list_files_if_any(files, {root, std::string(layout::kLocksDirectory)})) {
        if (!layout::is_lock_name(file.name) || file.info.modified > oldest) continue;
        const Path path = path_in(root, layout::kLocksDirectory, file.name);
        removed += remove_under_its_lock(files, path, file.info, remover) ? 1 : 0;
    }
    return removed;
}

void remove_counters(FileSystem& files, const std::string& root, Remover& remover) {
    for (const NamedFile& file : list_files_if_any(files, {root, std::string(layout::kCountersDirectory)})) {
        if (!layout::is_counters_name(file.name)) continue;
        const Path path = path_in(root, layout::kCountersDirectory, file.name);
        remove_under_its_lock(files, path, file.info, remover);
    }
}

}  // namespace attnsmith::cache
