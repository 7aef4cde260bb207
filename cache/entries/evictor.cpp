#include "cache/entries/evictor.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cache/entries/entry_file.hpp"
#include "cache/entries/file_clock.hpp"
#include "cache/entries/layout.hpp"
#include "cache/entries/leftovers.hpp"
#include "cache/files/lock.hpp"

namespace attnsmith::cache {
namespace {

constexpr std::uint64_t kShards = 256;
// Enough to look into what went wrong.
constexpr std::uint64_t kMostQuarantinedBytes = std::uint64_t{16} << 20;
// A lock file costs an inode: those of keys compiled long ago go.
constexpr auto kLockFileIsOldAfter = std::chrono::hours(24);

struct Evictable {
    FoundEntry found;
    FileTime last_used;
};

// The same for all evictors.
bool goes_first(const Evictable& a, const Evictable& b) {
    return std::tie(a.last_used, a.found.path.relative) < std::tie(b.last_used, b.found.path.relative);
}

// A stamp of the future would never be old. Whose clock was wrong is not known, and it may be what was
// published just now: so it gets a new stamp, and its turn when that is old. Without one it would stay for
// ever: it goes first.
Evictable with_last_use(FileSystem& files, FoundEntry entry, FileTime now) {
    const FileTime stamp = entry.info.modified;
    if (stamp <= now + kStampIsOldAfter) return {std::move(entry), stamp};
    const Result<std::unique_ptr<File>> file = files.open_for_reading(entry.path);
    if (!file || !(*file)->touch().ok()) return {std::move(entry), FileTime::min()};
    const Result<FileInfo> touched = (*file)->stat();
    if (touched && touched->same_file(entry.info)) entry.info.modified = touched->modified;
    return {std::move(entry), now};
}

// False if it was read or replaced since it was listed, and so is not to go.
bool is_as_listed(FileSystem& files, const FoundEntry& entry) {
    const Result<FileInfo> now = files.stat(entry.path);
    if (!now) return true;  // its removal will say why, or that it is gone
    return now->same_file(entry.info) && now->modified == entry.info.modified;
}

Lock lock_evictor(FileSystem& files, const std::string& root, const EvictionLimits& limits) {
    const Path path{root, std::string(layout::kEvictorLock)};
    return acquire_lock(files, path, limits.directory_mode & kFileBits, limits.lock_wait,
                        maker_of_parent(files, path, limits.directory_mode));
}

// Those that go first come first.
std::vector<Evictable> in_order(FileSystem& files, std::vector<FoundEntry> entries, FileTime now) {
    std::vector<Evictable> evictable;
    evictable.reserve(entries.size());
    for (FoundEntry& entry : entries) evictable.push_back(with_last_use(files, std::move(entry), now));
    std::sort(evictable.begin(), evictable.end(), goes_first);
    return evictable;
}

void evict_entries(FileSystem& files, const std::string& root, const EvictionLimits& limits, FileClock& clock,
                   EvictionReport& report) {
    FoundEntries found = find_entries(files, root);
    std::erase_if(found.entries,
                  [](const FoundEntry& entry) { return entry.info.kind != FileKind::regular; });
    KeptEntries kept{.entries = found.entries.size()};
    for (const FoundEntry& entry : found.entries) kept.bytes += entry.info.allocated_bytes;

    Remover remover(files);
    for (const Status& unreadable : found.unreadable) remover.note_failure(unreadable);
    if (limits.start_above && kept.bytes > *limits.start_above) {
        const auto grace = std::chrono::duration_cast<FileTime::duration>(limits.grace);
        const FileTime oldest_kept = grace == grace.zero() ? FileTime::max() : clock.now() - grace;
        for (const Evictable& entry : in_order(files, std::move(found.entries), clock.now())) {
            if (kept.bytes <= limits.stop_at || entry.last_used > oldest_kept) break;
            if (!is_as_listed(files, entry.found)) continue;
            const Removal removal = remover.remove(entry.found.path, entry.found.info);
            // One that cannot be removed takes its room; those after it can still make some.
            if (removal == Removal::failed) continue;
            // Somebody else may have removed it: it takes no more room all the same.
            report.entries += removal == Removal::removed ? 1 : 0;
            --kept.entries;
            kept.bytes -= entry.found.info.allocated_bytes;
        }
    }
    report.entry_bytes = remover.allocated_bytes();
    report.status = remover.status();
    if (found.unreadable.empty()) report.kept = kept;
}

}  // namespace

EvictionReport evict(FileSystem& files, const std::string& root, const EvictionLimits& limits) {
    EvictionReport report;
    report.limit = limits.start_above;
    const Lock lock = lock_evictor(files, root, limits);
    report.busy = lock.state() == LockState::timed_out;
    if (report.busy) return report;

    FileClock clock(files, root, limits.directory_mode);
    Remover leftovers(files);
    report.staging = remove_stale_staging_files(files, root, clock, leftovers).files;
    report.quarantined = remove_quarantined(files, root, kMostQuarantinedBytes, leftovers).files;
    report.locks = remove_idle_lock_files(files, root, clock.now() - kLockFileIsOldAfter, leftovers).files;
    report.leftover_status = leftovers.status();
    evict_entries(files, root, limits, clock, report);
    report.bytes = leftovers.allocated_bytes() + report.entry_bytes;
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
