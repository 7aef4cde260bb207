// When a remote is left alone for a while. Internal to cache/.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

namespace attnsmith::cache {

// Closed for kRest after kFailures failures in a row, and also once it has cost more time than it may. What a
// fetch costs is the time it took, less what it saved if it succeeded; what is saved pays for what is lost.
// After each such rest half as much may be lost as before, so that all rests together cost no more than twice
// the first. Nor is anything saved up after the first rest, and little before it: what several threads save
// is added up, but they lose their time together, so a server that is quick and hangs by turns would win each
// time. Thread-safe, without a mutex: a child made by fork has what its parent knew.
class Breaker {
  public:
    using Clock = std::chrono::steady_clock;

    static constexpr int kFailures = 3;
    static constexpr std::chrono::seconds kRest{30};
    static constexpr std::chrono::milliseconds kMayLose{1200};
    static constexpr std::chrono::milliseconds kMaySaveUp{600};  // twice kMayLose and this are three seconds

    enum class Outcome { fetched, absent, failed };

    // How long a fetch may take that begins now, at most `limit`; nothing while the remote is left alone.
    // Without `counts_time` any time is well spent: there is no other way to the kernel.
    std::optional<std::chrono::nanoseconds> allow(Clock::time_point now, std::chrono::nanoseconds limit,
                                                  bool counts_time) const;

    // To be told after each fetch that was allowed, for what it cost counts. True: this is what closes it.
    bool note(Clock::time_point began, Clock::time_point ended, Outcome outcome, bool counts_time);

  private:
    // What a compile takes at the least, which a fetch saves.
    static constexpr std::chrono::milliseconds kSaved{300};

    bool close(Clock::time_point now);
    std::int64_t may_lose() const;

    std::atomic<int> failures_{0};               // in a row
    std::atomic<std::int64_t> lost_{0};          // in nanoseconds
    std::atomic<int> rests_{0};                  // for lost time
    std::atomic<std::int64_t> closed_until_{0};  // in nanoseconds of the clock
};

}  // namespace attnsmith::cache
