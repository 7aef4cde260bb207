// How many of a process's threads may do costly work at a time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "cache/files/patience.hpp"

namespace attnsmith::cache {

// Thread-safe. (A counter of our own: libstdc++ 12's counting_semaphore can lose a wake-up, GCC bug 104928.)
class Slots {
  public:
    using Clock = std::chrono::steady_clock;

    explicit Slots(int count) : free_(count) {}
    Slots(const Slots&) = delete;
    Slots& operator=(const Slots&) = delete;

    // Gives its slot back at the end.
    class [[nodiscard]] Slot {
      public:
        Slot() = default;
        explicit Slot(Slots& slots) : slots_(&slots) {}
        Slot(Slot&& other) noexcept : slots_(std::exchange(other.slots_, nullptr)) {}
        Slot& operator=(Slot&& other) noexcept {
            if (this != &other) {
                release();
                slots_ = std::exchange(other.slots_, nullptr);
            }
            return *this;
        }
        ~Slot() { release(); }

        bool held() const { return slots_ != nullptr; }
        void release();

      private:
        Slots* slots_ = nullptr;
    };

    // Waits as long as slots are given back; where none is for as long as `patience` lasts, gives up: not
    // held.
    Slot take(Patience& patience);
    Slot try_take();

    // Time of the last one; the queue moves as long as this does.
    Clock::time_point last_given_back() const;

  private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    int free_;
    Clock::time_point last_given_back_ = Clock::now();
};

}  // namespace attnsmith::cache
