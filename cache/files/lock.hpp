// Single flight between processes: an advisory lock on a file, which the kernel drops with its holder, so
// that a killed process blocks nobody. The file itself stays behind, means nothing and goes when it is old.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "cache/files/file_system.hpp"
#include "cache/files/patience.hpp"
#include "cache/files/per_process.hpp"
#include "cache/files/status.hpp"

namespace attnsmith::cache {

enum class LockState {
    acquired,                // at once
    acquired_after_waiting,  // somebody else held it: what they made is probably there now
    not_needed,              // what it was wanted for has come about without it
    timed_out,               // the wait is over; go on without
    unavailable,             // no directory, or a file system without locks; go on without
};

// Movable; releases in its destructor. Use it from one thread at a time. In a child made by fork it holds
// nothing and leaves the parent's lock alone. Whatever the state, the caller re-checks the cache before it
// compiles.
class [[nodiscard]] Lock {
  public:
    Lock(LockState state, Status status, std::chrono::nanoseconds waited, std::unique_ptr<File> file);
    Lock(Lock&&) noexcept = default;
    Lock& operator=(Lock&&) noexcept = default;
    ~Lock() = default;

    LockState state() const { return state_; }
    bool held() const { return file_ != nullptr && holder_ == process_number(); }
    // Why it is not held.
    const Status& status() const { return status_; }
    std::chrono::nanoseconds waited() const { return waited_; }
    // The lock file, for who keeps something in it. REQUIRES: held().
    File& file() const { return *file_; }

    void release() { file_.reset(); }

  private:
    LockState state_;
    Status status_;
    std::chrono::nanoseconds waited_;
    std::unique_ptr<File> file_;
    std::uint64_t holder_ = process_number();
};

// Makes the directory of a lock file, called where it is missing. Empty: it must exist.
using MakeDirectory = std::function<Status()>;
// The usual one: in a root that exists, with this mode. REQUIRES: `file_system` outlives it.
MakeDirectory maker_of_parent(FileSystem& file_system, const Path& path, std::uint32_t mode);

// Opens the lock file, makes it if missing, and does not lock it.
Result<std::unique_ptr<File>> open_lock_file(FileSystem& file_system, const Path& path, std::uint32_t mode,
                                             const MakeDirectory& make_directory);

// Opens the lock file and waits at most `limit` for its lock. The lock of a file that was removed meanwhile
// is not taken: whoever removes one must hold its lock.
Lock acquire_lock(FileSystem& file_system, const Path& path, std::uint32_t mode,
                  std::chrono::nanoseconds limit, const MakeDirectory& make_directory = {});
// Waits as long as `patience` lasts, which it may lose meanwhile. `enough`, asked now and then, ends the wait
// when it is true.
Lock acquire_lock(FileSystem& file_system, const Path& path, std::uint32_t mode, const Patience& patience,
                  const std::function<bool()>& enough, const MakeDirectory& make_directory = {});

// Whether a lock is unavailable because the file system has none.
bool is_lack_of_locks(const Status& status);

}  // namespace attnsmith::cache
