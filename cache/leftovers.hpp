// What is removed from a cache directory, one file at a time, with an account of it. Internal to cache/.
#pragma once

#include <cstdint>
#include <string>

#include "cache/file_system.hpp"
#include "cache/status.hpp"

namespace attnsmith::cache {

class Remover {
  public:
    explicit Remover(FileSystem& files) : files_(files) {}

    // Whether this call removed it. Gone already is as good, but not counted.
    bool remove(const Path& path, const FileInfo& info);
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

// Each removes files of its kind, and only files named as ours, and says how many.

// Of an hour and more: whoever made them is dead. Of the future as well, where a clock was wrong.
std::uint64_t remove_stale_staging_files(FileSystem& files, const std::string& root, Remover& remover);
// The oldest, until at most `most_bytes` are left on the disk.
std::uint64_t remove_quarantined(FileSystem& files, const std::string& root, std::uint64_t most_bytes,
                                 Remover& remover);
// Those that nobody holds and that are older than `oldest`. Each is removed under its own lock, so that
// whoever gets it next sees that it is gone.
std::uint64_t remove_idle_lock_files(FileSystem& files, const std::string& root, FileTime oldest,
                                     Remover& remover);
void remove_counters(FileSystem& files, const std::string& root, Remover& remover);

}  // namespace attnsmith::cache
