// How long waits may last where what is waited for may never come.
#pragma once

#include <atomic>
#include <chrono>

namespace attnsmith::cache {

// One wait in vain is enough: until a wait pays off again the others are short, so that many keys that are
// stuck cost hardly more than one. Thread-safe.
class Patience {
  public:
    explicit Patience(std::chrono::nanoseconds longest) : longest_(longest) {}

    // Looked at during a wait, too, which may come to end sooner.
    std::chrono::nanoseconds limit() const {
        return lost_.load(std::memory_order_relaxed) ? longest_ / kMuchLonger : longest_;
    }
    void waited_in_vain() { lost_.store(true, std::memory_order_relaxed); }
    void wait_paid_off() { lost_.store(false, std::memory_order_relaxed); }

  private:
    static constexpr int kMuchLonger = 120;  // two minutes, then a second each

    const std::chrono::nanoseconds longest_;
    std::atomic<bool> lost_{false};
};

}  // namespace attnsmith::cache
