#include "cache/remote/breaker.hpp"

#include <algorithm>

namespace attnsmith::cache {
namespace {

using std::chrono::nanoseconds;

std::int64_t since_epoch(Breaker::Clock::time_point time) {
    return std::chrono::duration_cast<nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

std::int64_t Breaker::may_lose() const {
    constexpr int kMostHalvings = 8;
    return nanoseconds(kMayLose).count() >> std::min(rests_.load(), kMostHalvings);
}

std::optional<nanoseconds> Breaker::allow(Clock::time_point now, nanoseconds limit, bool counts_time) const {
    if (since_epoch(now) < closed_until_.load()) return std::nullopt;
    if (!counts_time) return limit;
    // What is left of it, so that requests at the same time lose it together and not one after the other.
    return std::min(limit, nanoseconds(std::max<std::int64_t>(may_lose() - lost_.load(), 0)));
}

bool Breaker::note(Clock::time_point began, Clock::time_point ended, Outcome outcome, bool counts_time) {
    // Lost at the same time as what has closed it, so nobody has lost it twice.
    if (since_epoch(ended) < closed_until_.load()) return false;
    const int failures = outcome == Outcome::failed ? failures_.fetch_add(1) + 1 : 0;
    if (outcome != Outcome::failed) failures_ = 0;
    bool costs_too_much = false;
    if (counts_time) {
        nanoseconds cost = ended - began;
        if (outcome == Outcome::fetched) cost -= kSaved;
        const std::int64_t most_saved = rests_.load() == 0 ? -nanoseconds(kMaySaveUp).count() : 0;
        std::int64_t before = lost_.load(), after = 0;
        do {
            after = std::max(before + cost.count(), most_saved);
        } while (!lost_.compare_exchange_weak(before, after));
        costs_too_much = after >= may_lose();
    }
    if (failures < kFailures && !costs_too_much) return false;
    if (!close(ended)) return false;
    failures_ = 0;
    if (costs_too_much) {
        ++rests_;
        lost_ = 0;
    }
    return true;
}

// False: another thread has.
bool Breaker::close(Clock::time_point now) {
    std::int64_t until = closed_until_.load();
    const std::int64_t end = since_epoch(now + kRest);
    while (since_epoch(now) >= until) {
        if (closed_until_.compare_exchange_weak(until, end)) return true;
    }
    return false;
}

}  // namespace attnsmith::cache
