// One make of a value for each key: over the threads of a process by a table, over the processes that share
// a store's directory by the key's lock.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "cache/digest/digest.hpp"
#include "cache/files/per_process.hpp"
#include "cache/flight/slots.hpp"
#include "cache/store/store.hpp"

namespace attnsmith::cache {

enum class Origin {
    memory,     // made by this process before
    disk,       // at the first look
    made,       // by this call
    fetched,    // by this call, from elsewhere
    waited,     // by another thread or process meanwhile
    cancelled,  // nowhere: there is no value
};

// Thread-safe. Right after fork as well: what other threads of the parent were at is none of the child's
// business, what they had made it has. No wait is longer than the store's Options::lock_wait without
// anything moving; whoever has waited in vain makes the value itself, which costs work and nothing else.
class SingleFlight {
  public:
    using Value = std::shared_ptr<const void>;

    // What a caller does for a key. Any of them may throw; what was made is kept all the same.
    struct Job {
        std::function<bool(const Value&)> accept;
        // In the store, for a value that is accepted. Null: there is none.
        std::function<Value()> look;
        // Elsewhere, where that is quicker than to make it; kept as what is made. Asked under the key's lock
        // and without a slot. Null: it is not there. May be empty.
        std::function<Value()> fetch = {};
        // Not null. What it throws is thrown to this caller alone: others make it themselves.
        std::function<Value()> make;
        // Runs when the threads that wait have the value already, under the key's lock.
        std::function<void(const Value&)> publish;
        // Asked before `make`, and now and then in a wait for another process, with how long that lasts
        // already. Once true, it stays true, and obtain() gives nothing, unless a value is there. May be
        // empty.
        std::function<bool(std::chrono::nanoseconds waited)> cancelled = {};
        // When `make` may run. A caller that joins a job of the background raises it.
        Urgency urgency = Urgency::caller;
    };

    struct Obtained {
        Value value;
        Origin origin = Origin::memory;
        bool accepted = true;  // false: `value` was made by this process, and the store has nothing better
    };

    // At most `slots` makes run at a time. REQUIRES: `store` outlives this.
    SingleFlight(const Store& store, int slots);
    SingleFlight(const SingleFlight&) = delete;
    SingleFlight& operator=(const SingleFlight&) = delete;
    ~SingleFlight();

    // Hits take no lock.
    Obtained obtain(const Digest& key, const Job& job);

    // Waits until what another thread has made of the key is published, or could not be.
    void settle(const Digest& key);

    // How many makes wait for a slot now, of those with this urgency.
    std::size_t waiting(Urgency urgency) const;

  private:
    struct Flight;
    struct State;
    class Pilot;
    struct Turn;

    static std::shared_ptr<Flight> find(State& state, const Digest& key);
    static std::shared_ptr<Flight> start(State& state, const Digest& key, const Flight* instead_of,
                                         Urgency urgency);
    Value landed_value(State& state, const std::shared_ptr<Flight>& flight) const;
    bool wait(State& state, Flight& flight, bool until_published) const;
    std::optional<Obtained> fetch(const Digest& key, const Job& job, Pilot& pilot) const;
    Obtained fly(State& state, const Digest& key, std::shared_ptr<Flight> flight, const Job& job);
    Turn wait_for_turn(State& state, const Digest& key, const Job& job, Flight& flight, Pilot& pilot);
    Value look_until_locked(const Digest& key, const Job& job, Lock& lock) const;

    const Store& store_;
    PerProcess<State> state_;
};

}  // namespace attnsmith::cache
