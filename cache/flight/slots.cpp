#include "cache/flight/slots.hpp"

#include <algorithm>

namespace attnsmith::cache {

void Slots::Slot::release() {
    if (slots_ == nullptr) return;
    Slots& slots = *std::exchange(slots_, nullptr);
    const std::lock_guard lock(slots.mutex_);
    slots.last_given_back_ = Clock::now();
    for (Queue& queue : slots.queues_) {
        if (queue.empty()) continue;
        Waiter& next = *queue.front();
        queue.pop_front();
        next.served_ = true;
        next.changed_.notify_one();  // under the mutex: the waiter may be gone right after it
        return;
    }
    ++slots.free_;
}

Slots::Slot Slots::take(Patience& patience, Waiter& waiter) {
    const Clock::time_point start = Clock::now();
    std::unique_lock lock(mutex_);
    if (free_ > 0) {
        --free_;
        return Slot(*this);
    }
    waiter.served_ = false;
    queue_of(waiter).push_back(&waiter);
    while (!waiter.served_) {
        const auto end = std::max(start, last_given_back_) + patience.limit();
        if (Clock::now() >= end) {
            patience.waited_in_vain();
            queue_of(waiter).remove(&waiter);
            return {};
        }
        waiter.changed_.wait_until(lock, end);
    }
    patience.wait_paid_off();
    return Slot(*this);
}

Slots::Slot Slots::try_take() {
    const std::lock_guard lock(mutex_);
    if (free_ == 0) return {};
    --free_;
    return Slot(*this);
}

void Slots::raise(Waiter& waiter) {
    const std::lock_guard lock(mutex_);
    if (waiter.urgency_ == Urgency::caller) return;
    Queue& queue = queue_of(waiter);
    const auto place = std::ranges::find(queue, &waiter);
    waiter.urgency_ = Urgency::caller;
    if (place != queue.end())
        queue_of(waiter).splice(queue_of(waiter).end(), queue, place);  // allocates nothing
}

std::size_t Slots::waiting(Urgency urgency) const {
    const std::lock_guard lock(mutex_);
    return queues_[static_cast<std::size_t>(urgency)].size();
}

Slots::Clock::time_point Slots::last_given_back() const {
    const std::lock_guard lock(mutex_);
    return last_given_back_;
}

}  // namespace attnsmith::cache
