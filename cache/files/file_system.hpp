// Every file operation of the cache goes through FileSystem, so that a full disk, a torn write or a read-only
// mount is an ordinary unit test: derive from it, forward to posix_file_system(), and fail where the test
// wants.
//
// Failures are statuses that carry errno. Implementations retry EINTR and are thread-safe; a File belongs to
// one thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/files/status.hpp"

namespace attnsmith::cache {

// A place in a cache. Symbolic links are followed in `root`, which a user chose, and nowhere below it: an
// operation on a path with a link in `relative`, at its end or before it, fails with ELOOP or ENOTDIR.
struct Path {
    std::string root;
    std::string relative;  // '/'-separated, no "." or ".."; empty for the root itself

    std::string full() const { return relative.empty() ? root : root + "/" + relative; }
};

enum class FileKind { regular, directory, symbolic_link, other };

using FileTime = std::chrono::system_clock::time_point;

// A time of a file, or of what is written in one, which may be any number. Times before 1823 or after 2116
// become those years, so that any two of them have a difference.
FileTime file_time_of(std::int64_t seconds_since_1970, std::int64_t nanoseconds = 0);

struct FileInfo {
    FileKind kind = FileKind::other;
    std::uint64_t bytes = 0;            // the length
    std::uint64_t allocated_bytes = 0;  // what it takes on the disk
    FileTime modified;
    std::uint32_t mode = 0;  // permission bits
    std::uint32_t owner = 0;
    std::uint32_t group = 0;
    std::uint64_t device = 0;
    std::uint64_t inode = 0;

    bool same_file(const FileInfo& other) const { return device == other.device && inode == other.inode; }
};

// The permission bits that a file takes from its directory's.
inline constexpr std::uint32_t kFileBits = 0666;

struct NamedFile {
    std::string name;
    FileInfo info;
};

struct ListedFiles {
    std::vector<NamedFile> files;
    Status unreadable;  // why the first of the others could not be looked at; success where there are none
};

// An open file; the destructor closes it and releases its lock.
class File {
  public:
    virtual ~File() = default;

    virtual Result<FileInfo> stat() = 0;
    // One read: how many bytes it gave, 0 at the end.
    virtual Result<std::size_t> read_some(std::span<std::byte> buffer) = 0;
    // The same from a place in the file, which it does not move: several threads may read so at a time.
    virtual Result<std::size_t> read_some_at(std::uint64_t offset, std::span<std::byte> buffer) = 0;
    // One write: how many bytes were taken, maybe fewer than given.
    virtual Result<std::size_t> write_some(std::span<const std::byte> bytes) = 0;
    // One write at an offset, whatever was read or written before.
    virtual Result<std::size_t> write_at(std::span<const std::byte> bytes, std::uint64_t offset) = 0;
    // Sets the time of modification to now. Needs write permission to the file, not a file opened for
    // writing.
    virtual Status touch() = 0;
    // Success where the file system has no such operation.
    virtual Status sync() = 0;
    // Closes and reports what the system held back until now (NFS, quotas). Idempotent.
    virtual Status close() = 0;

    // Takes the file's exclusive advisory lock, which the kernel drops with this process. EWOULDBLOCK when
    // another open file holds it, in this process or another; ENOLCK, ENOSYS, EOPNOTSUPP or EINVAL on file
    // systems without locks. A child made by fork neither keeps nor releases a lock of its parent. REQUIRES:
    // opened by open_lock_file.
    virtual Status try_lock() = 0;
};

class FileSystem {
  public:
    virtual ~FileSystem() = default;

    // Without `relative`, a path means the file that `root` names, through any link.
    virtual Result<std::unique_ptr<File>> open_for_reading(const Path& path) = 0;
    // What these two and make_directory() make has exactly the mode given, whatever the umask: a directory
    // that a group shares must not depend on each member's. A directory keeps the set-group-ID bit of its
    // parent.
    // create_exclusively() fails with EEXIST if there is anything of that name; without a mode its file has
    // what the umask leaves of 0666, as what users name themselves does.
    virtual Result<std::unique_ptr<File>> create_exclusively(const Path& path,
                                                             std::optional<std::uint32_t> mode) = 0;
    virtual Result<std::unique_ptr<File>> open_lock_file(const Path& path, std::uint32_t mode) = 0;

    // Both paths have the same root. Replaces `to` atomically: a file by a file, an empty directory by a
    // directory.
    virtual Status rename(const Path& from, const Path& to) = 0;
    // Fails with EEXIST if there is anything named `to`.
    virtual Status rename_if_free(const Path& from, const Path& to) = 0;
    // Both paths have the same root, and something is there under both names: each gets the other's, at once.
    // EINVAL or ENOSYS on file systems and kernels that cannot.
    virtual Status exchange(const Path& one, const Path& other) = 0;
    virtual Status remove_file(const Path& path) = 0;
    // Fails with ENOTEMPTY (or EEXIST) where anything is in it.
    virtual Status remove_directory(const Path& path) = 0;

    // Success if the directory is there already. For a root, missing parents are made too, and what is made
    // is synced into its parent.
    virtual Status make_directory(const Path& path, std::uint32_t mode) = 0;
    // Makes renames in the directory durable; success where the file system has no such operation.
    virtual Status sync_directory(const Path& path) = 0;
    // Makes all that was written and renamed on the directory's file system durable, by whomever: for many
    // files at once.
    virtual Status sync_file_system(const Path& path) = 0;

    // The names, without "." and "..", in no order.
    virtual Result<std::vector<std::string>> list_names(const Path& path) = 0;
    // The names and what they are. Files that vanish meanwhile are left out, without a word; those that the
    // system does not let us look at are told of.
    virtual Result<ListedFiles> list_files(const Path& path) = 0;
    virtual Result<FileInfo> stat(const Path& path) = 0;
    // Whether files can be made in the directory, or directories in the nearest parent that exists: tries it,
    // and leaves nothing.
    virtual Status check_writable(const Path& directory) = 0;
};

// The real one. Lives as long as the process.
FileSystem& posix_file_system();

// Reads until the buffer is full or the file ends; how many bytes there were.
Result<std::size_t> read_fully(File& file, std::span<std::byte> buffer);
Result<std::size_t> read_fully_at(File& file, std::uint64_t offset, std::span<std::byte> buffer);
// Writes everything or fails.
Status write_fully(File& file, std::span<const std::byte> bytes);

}  // namespace attnsmith::cache
