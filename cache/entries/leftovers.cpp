#include "cache/entries/leftovers.hpp"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "cache/entries/entry_file.hpp"
#include "cache/entries/layout.hpp"
#include "cache/files/lock.hpp"
#include "cache/files/partial_file.hpp"

namespace attnsmith::cache {
namespace {

// Far above the write of a counter file, which is all that its lock is held for.
constexpr auto kLongestUseOfCounters = std::chrono::milliseconds(100);

Path path_in(const std::string& root, std::string_view directory, const std::string& name) {
    return {root, layout::in_directory(directory, name)};
}

std::vector<NamedFile> list_ours(FileSystem& files, const std::string& root, std::string_view directory,
                                 bool (*is_our_name)(std::string_view), Remover& remover) {
    std::vector<Status> unreadable;
    std::vector<NamedFile> listed = list_and_note(files, {root, std::string(directory)}, unreadable);
    for (Status& status : unreadable) remover.note_failure(std::move(status));
    std::erase_if(listed, [&](const NamedFile& file) {
        return file.info.kind == FileKind::directory || !is_our_name(file.name);
    });
    return listed;
}

// A link, say, that has the name of a file of ours: nobody can lock it, and as long as it is there nobody has
// the file.
bool is_in_the_place_of_a_file(const NamedFile& file) { return file.info.kind != FileKind::regular; }

std::uint64_t count_if_removed(Removal removal) { return removal == Removal::removed ? 1 : 0; }

}  // namespace

Removal Remover::remove(const Path& path, const FileInfo& info) {
    Status status = files_.remove_file(path);
    if (status.ok()) {
        bytes_ += info.bytes;
        allocated_bytes_ += info.allocated_bytes;
        return Removal::removed;
    }
    if (is_absence(status)) return Removal::gone_already;
    note_failure(std::move(status));
    return Removal::failed;
}

void Remover::note_failure(Status status) {
    if (status_.ok()) status_ = std::move(status);
}

Removed remove_stale_staging_files(FileSystem& files, const std::string& root, FileClock& clock,
                                   Remover& remover) {
    Removed removed;
    for (const NamedFile& file :
         list_ours(files, root, layout::kStagingDirectory, layout::is_staging_name, remover)) {
        if (!is_stale_staging(file.info.modified, clock.now())) {
            ++removed.in_use;
            continue;
        }
        const Path path = path_in(root, layout::kStagingDirectory, file.name);
        removed.files += count_if_removed(remover.remove(path, file.info));
    }
    return removed;
}

Removed remove_quarantined(FileSystem& files, const std::string& root, std::uint64_t most_bytes,
                           Remover& remover) {
    std::vector<NamedFile> found =
        list_ours(files, root, layout::kQuarantineDirectory, layout::is_quarantine_name, remover);
    std::sort(found.begin(), found.end(), [](const NamedFile& a, const NamedFile& b) {
        return a.info.modified > b.info.modified;  // the newest first
    });
    std::uint64_t kept = 0;
    Removed removed;
    for (const NamedFile& file : found) {
        // An empty file is something, too.
        kept += std::max<std::uint64_t>(file.info.allocated_bytes, 1);
        if (kept <= most_bytes) continue;
        const Path path = path_in(root, layout::kQuarantineDirectory, file.name);
        removed.files += count_if_removed(remover.remove(path, file.info));
    }
    return removed;
}

Removed remove_idle_lock_files(FileSystem& files, const std::string& root, FileTime oldest,
                               Remover& remover) {
    Removed removed;
    for (const NamedFile& file :
         list_ours(files, root, layout::kLocksDirectory, layout::is_lock_name, remover)) {
        if (file.info.modified > oldest) continue;
        const Path path = path_in(root, layout::kLocksDirectory, file.name);
        if (is_in_the_place_of_a_file(file)) {
            removed.files += count_if_removed(remover.remove(path, file.info));
            continue;
        }
        const Lock lock = acquire_lock(files, path, file.info.mode, std::chrono::nanoseconds::zero());
        if (lock.held()) removed.files += count_if_removed(remover.remove(path, file.info));
        if (lock.state() == LockState::timed_out) ++removed.in_use;
    }
    return removed;
}

void remove_counters(FileSystem& files, const std::string& root, Remover& remover) {
    for (const NamedFile& file :
         list_ours(files, root, layout::kCountersDirectory, layout::is_counters_name, remover)) {
        const Path path = path_in(root, layout::kCountersDirectory, file.name);
        if (is_in_the_place_of_a_file(file)) {
            static_cast<void>(remover.remove(path, file.info));
            continue;
        }
        const Lock lock = acquire_lock(files, path, file.info.mode, kLongestUseOfCounters);
        // Without locks nobody adds to it.
        if (lock.held() || is_lack_of_locks(lock.status())) {
            static_cast<void>(remover.remove(path, file.info));
        } else if (!is_absence(lock.status())) {
            remover.note_failure(lock.status());
        }
    }
}

}  // namespace attnsmith::cache
