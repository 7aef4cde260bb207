#include "cache/entries/file_clock.hpp"

#include <chrono>
#include <memory>

#include "cache/entries/layout.hpp"
#include "cache/files/lock.hpp"

namespace attnsmith::cache {
namespace {

std::optional<FileTime> touch_and_look(FileSystem& files, const Path& path, std::uint32_t directory_mode) {
    const Result<std::unique_ptr<File>> file =
        open_lock_file(files, path, directory_mode & kFileBits, maker_of_parent(files, path, directory_mode));
    // A time that we did not set just now says nothing.
    if (!file || !(*file)->touch().ok()) return std::nullopt;
    const Result<FileInfo> touched = (*file)->stat();
    return touched ? std::optional(touched->modified) : std::nullopt;
}

}  // namespace

FileTime FileClock::now() {
    if (!now_) {
        now_ = touch_and_look(files_, {root_, std::string(layout::kEvictorLock)}, directory_mode_)
                   .value_or(std::chrono::system_clock::now());
    }
    return *now_;
}

}  // namespace attnsmith::cache
