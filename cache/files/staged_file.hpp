// A file that is written aside and then moved into place whole. Internal to cache/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "cache/files/file_system.hpp"
#include "cache/files/status.hpp"

namespace attnsmith::cache {

// Removes itself unless it was moved.
class StagedFile {
  public:
    StagedFile(FileSystem& files, Path path, std::unique_ptr<File> file)
        : files_(&files), path_(std::move(path)), file_(std::move(file)) {}
    StagedFile(StagedFile&& other) noexcept
        : files_(std::exchange(other.files_, nullptr)),
          path_(std::move(other.path_)),
          file_(std::move(other.file_)) {}
    StagedFile& operator=(StagedFile&&) = delete;
    ~StagedFile();

    Status append(std::span<const std::byte> bytes);
    // REQUIRES: so much was appended.
    Status overwrite(std::span<const std::byte> bytes, std::uint64_t offset);
    // Syncs and closes.
    Status finish();
    // Closes. Whoever moves it must have had its file system synced.
    Status finish_unsynced() { return file_->close(); }
    // REQUIRES: finish() or finish_unsynced() succeeded.
    Status move_to(const Path& target);
    // The same, but for EEXIST where there is anything of that name.
    Status move_to_if_free(const Path& target);

    const Path& path() const { return path_; }

  private:
    FileSystem* files_;  // null once there is nothing to remove
    Path path_;
    std::unique_ptr<File> file_;
};

}  // namespace attnsmith::cache
