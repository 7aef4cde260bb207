// Ctrl-C and SIGTERM as a wish to stop, not as the end of the process.
#pragma once

#include <signal.h>

#include <atomic>
#include <stop_token>
#include <string>
#include <thread>

namespace attnsmith::cli {

// While it lives, the first SIGINT or SIGTERM requests a stop and says `message` on standard error; the
// second ends the process at once. A signal that the caller had ignored stays ignored. REQUIRES: made before
// the threads that are to be left alone by the signals.
class InterruptWatch {
  public:
    explicit InterruptWatch(std::string message);
    ~InterruptWatch();
    InterruptWatch(const InterruptWatch&) = delete;
    InterruptWatch& operator=(const InterruptWatch&) = delete;

    std::stop_token token() const { return stop_.get_token(); }
    bool interrupted() const { return stop_.stop_requested(); }

  private:
    void watch();

    std::string message_;
    sigset_t signals_{};
    sigset_t previous_mask_{};
    std::stop_source stop_;
    std::atomic<bool> done_ = false;
    std::thread thread_;
};

}  // namespace attnsmith::cli
