#include "cache/files/file_system.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace attnsmith::cache {
namespace {

// Until the buffer is full or there is no more to read.
template <class ReadSome>
Result<std::size_t> fill(std::span<std::byte> buffer, const ReadSome& read_some) {
    std::size_t done = 0;
    while (done < buffer.size()) {
        const Result<std::size_t> count = read_some(done);
        if (!count) return count;
        if (*count == 0) break;
        done += *count;
    }
    return done;
}

}  // namespace

FileTime file_time_of(std::int64_t seconds_since_1970, std::int64_t nanoseconds) {
    using std::chrono::seconds;
    constexpr auto kFarthest =
        std::chrono::duration_cast<seconds>(FileTime::duration::max() / 2) - seconds(1);
    const auto whole = std::clamp(seconds_since_1970, -kFarthest.count(), kFarthest.count());
    const auto since =
        seconds(whole) + std::chrono::nanoseconds(whole == seconds_since_1970 ? nanoseconds : 0);
    return FileTime(std::chrono::duration_cast<FileTime::duration>(since));
}

Result<std::size_t> read_fully(File& file, std::span<std::byte> buffer) {
    return fill(buffer, [&](std::size_t done) { return file.read_some(buffer.subspan(done)); });
}

Result<std::size_t> read_fully_at(File& file, std::uint64_t offset, std::span<std::byte> buffer) {
    return fill(buffer,
                [&](std::size_t done) { return file.read_some_at(offset + done, buffer.subspan(done)); });
}

Status write_fully(File& file, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const Result<std::size_t> count = file.write_some(bytes);
        if (!count) return count.status();
        // POSIX allows it; asking again could go on for ever.
        if (*count == 0) return Status::from_errno(EIO, "write any byte of", {});
        bytes = bytes.subspan(*count);
    }
    return Status::success();
}

}  // namespace attnsmith::cache
