#include "cache/files/posix_file.hpp"

#include <pthread.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "cache/files/never_destroyed.hpp"
#include "cache/files/size_signal.hpp"

namespace attnsmith::cache {
namespace {

constexpr std::uint64_t kStatBlockBytes = 512;  // of st_blocks, whatever the file system's own block

FileKind kind_of(mode_t mode) {
    if (S_ISREG(mode)) return FileKind::regular;
    if (S_ISDIR(mode)) return FileKind::directory;
    if (S_ISLNK(mode)) return FileKind::symbolic_link;
    return FileKind::other;
}

class PosixFile : public File {
  public:
    PosixFile(Descriptor descriptor, std::string path)
        : descriptor_(std::move(descriptor)), path_(std::move(path)) {}

    Result<FileInfo> stat() override {
        struct ::stat found;
        if (::fstat(descriptor_.get(), &found) != 0) return failed("stat");
        return file_info_of(found);
    }

    Result<std::size_t> read_some(std::span<std::byte> buffer) override {
        const auto count =
            retry_interrupted([&] { return ::read(descriptor_.get(), buffer.data(), buffer.size()); });
        if (count < 0) return failed("read");
        return static_cast<std::size_t>(count);
    }

    Result<std::size_t> read_some_at(std::uint64_t offset, std::span<std::byte> buffer) override {
        const auto count = retry_interrupted([&] {
            return ::pread(descriptor_.get(), buffer.data(), buffer.size(), static_cast<off_t>(offset));
        });
        if (count < 0) return failed("read");
        return static_cast<std::size_t>(count);
    }

    Result<std::size_t> write_some(std::span<const std::byte> bytes) override {
        const SizeSignalHeld held;
        const auto count =
            retry_interrupted([&] { return ::write(descriptor_.get(), bytes.data(), bytes.size()); });
        if (count < 0) return failed("write");
        return static_cast<std::size_t>(count);
    }

    Result<std::size_t> write_at(std::span<const std::byte> bytes, std::uint64_t offset) override {
        const SizeSignalHeld held;
        const auto count = retry_interrupted([&] {
            return ::pwrite(descriptor_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
        });
        if (count < 0) return failed("write");
        return static_cast<std::size_t>(count);
    }

    Status touch() override {
        // Both times: to set one alone, write permission is not enough, one must be the owner.
        const std::array<timespec, 2> now = {timespec{0, UTIME_NOW}, timespec{0, UTIME_NOW}};
        return ::futimens(descriptor_.get(), now.data()) == 0 ? Status::success() : failed("touch");
    }

    Status sync() override {
        const int result = retry_interrupted([&] { return ::fsync(descriptor_.get()); });
        return result == 0 || has_no_sync(errno) ? Status::success() : failed("sync");
    }

    // EINTR: on Linux the file is closed all the same, and the data went out with sync().
    Status close() override {
        return descriptor_.close() == 0 || errno == EINTR ? Status::success() : failed("close");
    }

    Status try_lock() override { return Status::from_errno(EBADF, "lock, not being a lock file,", path_); }

  protected:
    Status failed(std::string_view operation) const { return Status::from_errno(errno, operation, path_); }

    Descriptor descriptor_;
    const std::string path_;
};

class PosixLockFile;

// flock belongs to the open file, which a forked child shares: it would keep the lock of a parent that is
// long dead. So every open lock file is known here, and a child closes its copies. (A child made without the
// handlers of pthread_atfork, by vfork or posix_spawn, calls exec at once, and O_CLOEXEC does it.)
class LockFileRegistry {
  public:
    std::mutex& mutex() { return mutex_; }

    // REQUIRES, of all below: mutex() is held.
    void add(PosixLockFile* file) { files_.push_back(file); }
    void remove(PosixLockFile* file) { std::erase(files_, file); }
    std::uint64_t forks() const { return forks_; }
    void count_fork() { ++forks_; }
    void forget_all_in_child();

  private:
    // Never held over a call into the file system: on one that hangs, fork() would hang in every thread.
    std::mutex mutex_;
    std::uint64_t forks_ = 0;
    std::vector<PosixLockFile*> files_;
};

constinit NeverDestroyed<LockFileRegistry> lock_files;

[[maybe_unused]] const int fork_handlers = ::pthread_atfork(
    [] {
        lock_files.get().mutex().lock();
        lock_files.get().count_fork();
    },
    [] { lock_files.get().mutex().unlock(); },
    [] {
        lock_files.get().forget_all_in_child();
        lock_files.get().mutex().unlock();
    });

class PosixLockFile final : public PosixFile {
  public:
    // REQUIRES: the registry's mutex is held.
    PosixLockFile(Descriptor descriptor, std::string path)
        : PosixFile(std::move(descriptor), std::move(path)) {
        lock_files.get().add(this);
    }

    ~PosixLockFile() override { unlock_and_close(); }

    Status close() override {
        unlock_and_close();
        return Status::success();
    }

    Status try_lock() override {
        const int result = retry_interrupted([&] { return ::flock(descriptor_.get(), LOCK_EX | LOCK_NB); });
        return result == 0 ? Status::success() : failed("lock");
    }

    void forget_in_child() { descriptor_.close(); }

  private:
    // Unlocks by name, since a child made by a bare clone(), or by a fork right before the descriptor is
    // closed, may share the open file. Such a child in turn must not.
    void unlock_and_close() {
        if (descriptor_.is_open() && ::getpid() == owner_) ::flock(descriptor_.get(), LOCK_UN);
        Descriptor closed_last(-1);
        const std::lock_guard guard(lock_files.get().mutex());
        lock_files.get().remove(this);
        closed_last = std::move(descriptor_);
    }

    const pid_t owner_ = ::getpid();
};

void LockFileRegistry::forget_all_in_child() {
    for (PosixLockFile* file : files_) file->forget_in_child();
    files_.clear();
}

}  // namespace

FileInfo file_info_of(const struct ::stat& found) {
    return {.kind = kind_of(found.st_mode),
            .bytes = static_cast<std::uint64_t>(found.st_size),
            .allocated_bytes = static_cast<std::uint64_t>(found.st_blocks) * kStatBlockBytes,
            .modified = file_time_of(found.st_mtim.tv_sec, found.st_mtim.tv_nsec),
            .mode = static_cast<std::uint32_t>(found.st_mode & 07777),
            .owner = static_cast<std::uint32_t>(found.st_uid),
            .group = static_cast<std::uint32_t>(found.st_gid),
            .device = static_cast<std::uint64_t>(found.st_dev),
            .inode = static_cast<std::uint64_t>(found.st_ino)};
}

bool has_no_sync(int error_number) {
    return error_number == EINVAL || error_number == EOPNOTSUPP || error_number == ENOSYS;
}

std::unique_ptr<File> make_posix_file(Descriptor descriptor, std::string path) {
    return std::make_unique<PosixFile>(std::move(descriptor), std::move(path));
}

Result<std::unique_ptr<File>> open_posix_lock_file(std::string path,
                                                   const std::function<Result<Descriptor>()>& open) {
    LockFileRegistry& registry = lock_files.get();
    const auto forks = [&] {
        const std::lock_guard guard(registry.mutex());
        return registry.forks();
    };
    for (;;) {
        const std::uint64_t before = forks();
        Result<Descriptor> descriptor = open();
        if (!descriptor) return descriptor.status();
        const std::lock_guard guard(registry.mutex());
        // A child of a fork meanwhile has a copy that it knows nothing of: this file must not be locked.
        if (registry.forks() != before) continue;
        return Result<std::unique_ptr<File>>(
            std::make_unique<PosixLockFile>(std::move(*descriptor), std::move(path)));
    }
}

}  // namespace attnsmith::cache
