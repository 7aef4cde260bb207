// What time it is where the times of a cache's files come from: a file server's clock is not ours, and what
// is young or old by the one need not be so by the other. Internal to cache/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cache/files/file_system.hpp"

namespace attnsmith::cache {

class FileClock {
  public:
    // The mode of the lock files' directory, where it is missing.
    FileClock(FileSystem& files, std::string root, std::uint32_t directory_mode)
        : files_(files), root_(std::move(root)), directory_mode_(directory_mode) {}

    // As of the first call, which touches the evictor's lock file, whoever holds its lock. This machine's
    // time where that cannot be done.
    FileTime now();

  private:
    FileSystem& files_;
    const std::string root_;
    const std::uint32_t directory_mode_;
    std::optional<FileTime> now_;
};

}  // namespace attnsmith::cache
