// Ctrl-C and SIGTERM as a wish to stop, not as the end of the process.
#pragma once

#include <signal.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <stop_token>
#include <string>
#include <thread>

namespace attnsmith::cli {

// How long work may go on after SIGTERM: service managers kill without a word after 10 s or more.
inline constexpr std::chrono::seconds kTerminationGrace{5};

// While it lives, the first SIGINT or SIGTERM requests a stop and says `message` on standard error. The
// second ends the process at once, by that signal; after a SIGTERM, kTerminationGrace does so, too. A signal
// that the caller had ignored stays ignored. Where there is no thread to be had signals end the process at
// once, as they do without a watch. REQUIRES: made before the threads that are to be left alone by the
// signals.
class InterruptWatch {
  public:
    explicit InterruptWatch(std::string message);
    ~InterruptWatch();
    InterruptWatch(const InterruptWatch&) = delete;
    InterruptWatch& operator=(const InterruptWatch&) = delete;

    std::stop_token token() const { return stop_.get_token(); }
    bool interrupted() const { return stop_.stop_requested(); }
    // What an interrupted command ends with: 128 and the signal's number, as shells have it.
    int exit_code() const { return 128 + signal_; }

  private:
    using Clock = std::chrono::steady_clock;

    void watch();
    int wait_for_signal(Clock::time_point deadline) const;
    [[noreturn]] void end_by(int signal) const;

    std::string message_;
    sigset_t signals_{};
    sigset_t previous_mask_{};
    std::stop_source stop_;
    std::atomic<int> signal_ = 0;  // the first
    std::atomic<bool> done_ = false;
    // Work may fork (bench jit does): a thread that is still starting could hold a lock of the allocator, and
    // the child would wait for it for ever.
    std::latch started_{1};
    std::thread thread_;
};

}  // namespace attnsmith::cli
