#include "cache/evictor.hpp"

#include <algorithm>
#include <cerrno>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cache/entry_file.hpp"
#include "cache/layout.hpp"
#include "cache/leftovers.hpp"
#include "cache/lock.hpp"

namespace attnsmith::cache {
namespace {

constexpr std::uint64_t kShards = 256;
// Enough to look into what went wrong.
constexpr std::uint64_t kMostQuarantinedBytes = std::uint64_t{16} << 20;
// A lock file costs an inode: those of keys compiled long ago go.
constexpr auto kLockFileIsOldAfter = std::chrono::hours(24);

// The same for all evictors.
bool goes_first(const FoundEntry& a, const FoundEntry& b) {
    return std::tie(a.info.modified, a.path.relative) < std::tie(b.info.modified, b.path.relative);
}

// False if it was read or replaced since it was listed, and so is not to go.
bool is_as_listed(FileSystem& files, const FoundEntry& entry) {
    const Result<FileInfo> now = files.stat(entry.path);
    if (!now) return true;  // its removal will say why, or that it is gone
    return now->same_file(entry.info) && now->modified == entry.info.modified;
}

Lock lock_evictor(FileSystem& files, const std::string& root, const EvictionLimits& limits) {
    const Path path{root, std::string(layout::kEvictorLock)};
    const std::uint32_t mode = limits.directory_mode & kFileBits;
    Lock lock = acquire_lock(files, path, mode, limits.lock_wait);
    if (lock.status().error_number != ENOENT) return lock;
    const Path directory{root, std::string(layout::kLocksDirectory)};
    if (!files.make_directory(directory, limits.directory_mode).ok()) return lock;
    return acquire_lock(files, path, mode, limits.lock_wait);
}

void evict_entries(FileSystem& files, const std::string& root, const EvictionLimits& limits, Remover& remover,
                   EvictionReport& report) {
    FoundEntries found = find_entries(files, root);
    std::erase_if(found.entries,
                  [](const FoundEntry& entry) { return entry.info.kind != FileKind::regular; });
    report.kept_entries = found.entries.size();
    for (const FoundEntry& entry : found.entries) report.kept_bytes += entry.info.allocated_bytes;
    if (!limits.start_above || report.kept_bytes <= *limits.start_above) return;

    const auto grace = std::chrono::duration_cast<FileTime::duration>(limits.grace);
    const FileTime oldest_kept =
        grace == grace.zero() ? FileTime::max() : std::chrono::system_clock::now() - grace;
    std::sort(found.entries.begin(), found.entries.end(), goes_first);
    for (const FoundEntry& entry : found.entries) {
        if (report.kept_bytes <= limits.stop_at || entry.info.modified > oldest_kept) return;
        if (!is_as_listed(files, entry)) continue;
        const bool removed = remover.remove(entry.path, entry.info);
        if (!remover.status().ok()) return;
        // Somebody else may have removed it: it takes no more room all the same.
        report.entries += removed ? 1 : 0;
        report.entry_bytes += removed ? entry.info.allocated_bytes : 0;
        --report.kept_entries;
        report.kept_bytes -= entry.info.allocated_bytes;
    }
}

}  // namespace

EvictionReport evict(FileSystem& files, const std::string& root, const EvictionLimits& limits) {
    EvictionReport report;
    const Lock lock = lock_evictor(files, root, limits);
    report.busy = lock.state() == LockState::timed_out;
    if (report.busy) return report;

    Remover remover(files);
    report.staging = remove_stale_staging_files(files, root, remover);
    report.quarantined = remove_quarantined(files, root, kMostQuarantinedBytes, remover);
    report.locks =
        remove_idle_lock_files(files, root, std::chrono::system_clock::now() - kLockFileIsOldAfter, remover);
    if (remover.status().ok()) evict_entries(files, root, limits, remover, report);
    report.bytes = remover.allocated_bytes();
    report.status = remover.status();
    return report;
}

std::uint64_t estimate_allocated_bytes(FileSystem& files, const Path& shard) {
    std::uint64_t bytes = 0;
    for (const NamedFile& file : list_files_if_any(files, shard)) bytes += file.info.allocated_bytes;
    return kShards * bytes;
}

bool is_old_stamp(FileTime stamp, FileTime now) {
    return stamp < now - kStampIsOldAfter || stamp > now + kStampIsOldAfter;
}

}  // namespace attnsmith::cache
