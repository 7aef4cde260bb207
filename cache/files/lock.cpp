#include "cache/files/lock.hpp"

#include <algorithm>
#include <cerrno>
#include <thread>

namespace attnsmith::cache {
namespace {

using Clock = std::chrono::steady_clock;

// flock has no time limit, so a waiter polls: at first often, for the holder may be about to finish, then at
// a pace that costs nothing beside a compile.
constexpr auto kFirstPause = std::chrono::microseconds(500);
constexpr auto kLongestPause = std::chrono::milliseconds(20);
// To ask whether the wait has become needless costs more than to try the lock.
constexpr int kPausesBetweenQuestions = 4;

class Waiting {
  public:
    explicit Waiting(const Patience& patience) : patience_(patience) {}

    std::chrono::nanoseconds elapsed() const { return Clock::now() - start_; }
    int pauses() const { return pauses_; }

    // False when the time is over.
    bool pause() {
        const auto left = patience_.limit() - elapsed();
        if (left <= std::chrono::nanoseconds::zero()) return false;
        std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause_, left));
        pause_ = std::min<std::chrono::nanoseconds>(2 * pause_, kLongestPause);
        ++pauses_;
        return true;
    }

  private:
    Clock::time_point start_ = Clock::now();
    const Patience& patience_;
    std::chrono::nanoseconds pause_ = kFirstPause;
    int pauses_ = 0;
};

// EWOULDBLOCK when the time is over, EALREADY when there was enough.
Status wait_for_lock(File& file, Waiting& waiting, const std::function<bool()>& enough) {
    for (;;) {
        Status status = file.try_lock();
        if (status.error_number != EWOULDBLOCK || !waiting.pause()) return status;
        if (enough && waiting.pauses() % kPausesBetweenQuestions == 0 && enough())
            return {StatusClass::recoverable, EALREADY, {}, "not needed any more"};
    }
}

// Whether the file was removed, and perhaps made anew, between our opening it and our locking it.
bool was_removed(FileSystem& file_system, const Path& path, File& file) {
    const Result<FileInfo> locked = file.stat();
    if (!locked) return is_absence(locked.status());
    const Result<FileInfo> named = file_system.stat(path);
    if (!named) return is_absence(named.status());
    return !locked->same_file(*named);
}

Lock not_held(LockState state, Status status, const Waiting& waiting) {
    return {state, std::move(status), waiting.elapsed(), nullptr};
}

}  // namespace

Lock::Lock(LockState state, Status status, std::chrono::nanoseconds waited, std::unique_ptr<File> file)
    : state_(state), status_(std::move(status)), waited_(waited), file_(std::move(file)) {}

MakeDirectory maker_of_parent(FileSystem& file_system, const Path& path, std::uint32_t mode) {
    const Path parent{path.root, path.relative.substr(0, path.relative.rfind('/'))};
    return [&file_system, parent, mode] { return file_system.make_directory(parent, mode); };
}

Result<std::unique_ptr<File>> open_lock_file(FileSystem& file_system, const Path& path, std::uint32_t mode,
                                             const MakeDirectory& make_directory) {
    Result<std::unique_ptr<File>> file = file_system.open_lock_file(path, mode);
    if (file.ok() || !is_absence(file.status()) || !make_directory) return file;
    if (Status made = make_directory(); !made.ok()) return made;
    return file_system.open_lock_file(path, mode);
}

bool is_lack_of_locks(const Status& status) {
    // EINVAL: what some FUSE and 9p mounts say.
    return status.error_number == ENOLCK || status.error_number == ENOSYS ||
           status.error_number == EOPNOTSUPP || status.error_number == EINVAL;
}

Lock acquire_lock(FileSystem& file_system, const Path& path, std::uint32_t mode,
                  std::chrono::nanoseconds limit, const MakeDirectory& make_directory) {
    return acquire_lock(file_system, path, mode, Patience(limit), {}, make_directory);
}

Lock acquire_lock(FileSystem& file_system, const Path& path, std::uint32_t mode, const Patience& patience,
                  const std::function<bool()>& enough, const MakeDirectory& make_directory) {
    // Lock files are removed when a cache is cleared, and those of days ago; no more of them in a row.
    constexpr int kMostVanishings = 8;
    Waiting waiting(patience);
    for (int vanished = 0;;) {
        Result<std::unique_ptr<File>> file = open_lock_file(file_system, path, mode, make_directory);
        if (!file) return not_held(LockState::unavailable, file.status(), waiting);

        Status status = wait_for_lock(**file, waiting, enough);
        if (status.error_number == EALREADY)
            return not_held(LockState::not_needed, Status::success(), waiting);
        if (status.error_number == EWOULDBLOCK)
            return not_held(LockState::timed_out, std::move(status), waiting);
        // NFS says of a file that was removed that it is stale: another try finds the new one.
        const bool gone = is_absence(status) || (status.ok() && was_removed(file_system, path, **file));
        if (!gone && !status.ok()) return not_held(LockState::unavailable, std::move(status), waiting);

        if (!gone) {
            const auto state = waiting.pauses() > 0 ? LockState::acquired_after_waiting : LockState::acquired;
            return {state, Status::success(), waiting.elapsed(), std::move(file).value()};
        }
        if (++vanished == kMostVanishings || !waiting.pause()) {
            return not_held(LockState::unavailable,
                            Status::recoverable_error(ESTALE, path.full(), "the lock file keeps vanishing"),
                            waiting);
        }
    }
}

}  // namespace attnsmith::cache
