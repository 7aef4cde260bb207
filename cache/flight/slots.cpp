#include "cache/flight/slots.hpp"

#include <algorithm>

namespace attnsmith::cache {

void Slots::Slot::release() {
    if (slots_ == nullptr) return;
    {
        const std::lock_guard lock(slots_->mutex_);
        ++slots_->free_;
        slots_->last_given_back_ = Clock::now();
    }
    slots_->changed_.notify_one();
    slots_ = nullptr;
}

Slots::Slot Slots::take(Patience& patience) {
    const Clock::time_point start = Clock::now();
    std::unique_lock lock(mutex_);
    const bool waits = free_ == 0;
    while (free_ == 0) {
        const auto end = std::max(start, last_given_back_) + patience.limit();
        if (Clock::now() >= end) {
            patience.waited_in_vain();
            return {};
        }
        changed_.wait_until(lock, end);
    }
    if (waits) patience.wait_paid_off();
    --free_;
    return Slot(*this);
}

Slots::Slot Slots::try_take() {
    const std::lock_guard lock(mutex_);
    if (free_ == 0) return {};
    --free_;
    return Slot(*this);
}

Slots::Clock::time_point Slots::last_given_back() const {
    const std::lock_guard lock(mutex_);
    return last_given_back_;
}

}  // namespace attnsmith::cache
