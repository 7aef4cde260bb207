// How many of a process's threads may do costly work at a time, and which of those that wait goes next.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <utility>

#include "cache/files/patience.hpp"

namespace attnsmith::cache {

// A caller that waits for the result goes before work that is queued for later.
enum class Urgency : std::uint8_t { caller, background };

// Thread-safe. Waiters are served in order, callers first. (A queue of our own: libstdc++ 12's
// counting_semaphore can lose a wake-up, GCC bug 104928, and has no order.)
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

    // What one thread waits with, as often as it takes a slot. Its members are guarded by the Slots' mutex.
    class Waiter {
      public:
        explicit Waiter(Urgency urgency) : urgency_(urgency) {}
        Waiter(const Waiter&) = delete;
        Waiter& operator=(const Waiter&) = delete;

      private:
        friend class Slots;
        Urgency urgency_;
        bool served_ = false;
        std::condition_variable changed_;
    };

    // Waits as long as slots are given back; if none is given back for as long as `patience` lasts, gives up:
    // not held. One thread at a time for each waiter.
    Slot take(Patience& patience, Waiter& waiter);
    Slot try_take();

    // From now on the waiter is a caller's, and so is what it waits for now.
    void raise(Waiter& waiter);

    // How many wait now with this urgency.
    std::size_t waiting(Urgency urgency) const;

    // Time of the last one; the queue moves as long as this does.
    Clock::time_point last_given_back() const;

  private:
    using Queue = std::list<Waiter*>;

    Queue& queue_of(const Waiter& waiter) { return queues_[static_cast<std::size_t>(waiter.urgency_)]; }

    mutable std::mutex mutex_;
    std::array<Queue, 2> queues_;  // by urgency
    int free_;                     // 0 while anything waits: a slot is handed from one thread to the next
    Clock::time_point last_given_back_ = Clock::now();
};

}  // namespace attnsmith::cache
