#include "cache/lock.hpp"

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
    const Result<FileInfo> named = file_system.stat(path);
    if (!named) return named.status().error_number == ENOENT;
    return locked.ok() && !locked->same_file(*named);
}

Lock not_held(LockState state, Status status, const Waiting& waiting) {
    return {state, std::move(status), waiting.elapsed(), nullptr};
}

}  // namespace

Lock::Lock(LockState state, Status status, std::chrono::nanoseconds waited, std::unique_ptr<File> file)
    : state_(state), status_(std::move(status)), waited_(waited), file_(std::move(file)) {}

Lock acquire_lock(FileSystem& file_system, const Path& path, std::uint32_t mode,
                  std::chrono::nanoseconds limit) {
    return acquire_lock(file_system, path, mode, Patience(limit), {});
}

Lock acquire_lock(FileSystem& file_system, const Path& path, std::uint32_t mode, const Patience& patience,
                  const std::function<bool()>& enough) {
    Waiting waiting(patience);
    for (;;) {
        Result<std::unique_ptr<File>> file = file_system.open_lock_file(path, mode);
        if (!file) return not_held(LockState::unavailable, file.status(), waiting);

        Status status = wait_for_lock(**file, waiting, enough);
        if (status.error_number == EALREADY)
            return not_held(LockState::not_needed, Status::success(), waiting);
        if (status.error_number == EWOULDBLOCK)
            return not_held(LockState::timed_out, std::move(status), waiting);
        if (!status.ok()) return not_held(LockState::unavailable, std::move(status), waiting);

        if (!was_removed(file_system, path, **file)) {
            const auto state = waiting.pauses() > 0 ? LockState::acquired_after_waiting : LockState::acquired;
            return {state, Status::success(), waiting.elapsed(), std::move(file).value()};
        }
        if (!waiting.pause()) {
            return not_held(
                LockState::timed_out,
                Status::recoverable_error(EWOULDBLOCK, path.full(), "the lock file keeps vanishing"),
                waiting);
        }
    }
}

}  // namespace attnsmith::cache
