// What is removed from a cache directory, one file at a time, with an account of it. Internal to cache/.
#pragma once

#include <cstdint>
#include <string>

#include "cache/entries/file_clock.hpp"
#include "cache/files/file_system.hpp"
#include "cache/files/status.hpp"

namespace attnsmith::cache {

enum class Removal { removed, gone_already, failed };

class Remover {
  public:
    explicit Remover(FileSystem& files) : files_(files) {}

    // A failure is noted, and to be gone on after.
    Removal remove(const Path& path, const FileInfo& info);
    void note_failure(Status status);

    std::uint64_t bytes() const { return bytes_; }                      // lengths, of what was removed
    std::uint64_t allocated_bytes() const { return allocated_bytes_; }  // the same on the disk
    const Status& status() const { return status_; }                    // the first failure

  private:
    FileSystem& files_;
    std::uint64_t bytes_ = 0;
    std::uint64_t allocated_bytes_ = 0;
    Status status_;
};

struct Removed {
    std::uint64_t files = 0;
    std::uint64_t in_use = 0;  // what is left to those who use it
};

// Each removes files of its kind, and only what is named as ours and is no directory: we name none so.

Removed remove_stale_staging_files(FileSystem& files, const std::string& root, FileClock& clock,
                                   Remover& remover);
// The oldest, until at most `most_bytes` are left on the disk.
Removed remove_quarantined(FileSystem& files, const std::string& root, std::uint64_t most_bytes,
                           Remover& remover);
// Those that nobody holds and that are older than `oldest`. Each is removed under its own lock, so that
// whoever gets it next sees that it is gone.
Removed remove_idle_lock_files(FileSystem& files, const std::string& root, FileTime oldest, Remover& remover);
// All of them; one that stays locked is a failure, since who adds to it holds it for a moment only.
void remove_counters(FileSystem& files, const std::string& root, Remover& remover);

}  // namespace attnsmith::cache
