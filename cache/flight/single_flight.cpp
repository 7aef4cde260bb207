#include "cache/flight/single_flight.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/files/patience.hpp"

namespace attnsmith::cache {
namespace {

using Clock = Slots::Clock;

constexpr std::string_view kOtherThreads = "another thread of this process";

bool is_cancelled(const SingleFlight::Job& job) { return job.cancelled && job.cancelled({}); }

}  // namespace

// One thread's way to a value, and where others wait for it. Guarded by the state's mutex, but for `waiter`.
struct SingleFlight::Flight {
    enum class Step { queued, awaiting_lock, making };

    explicit Flight(Urgency urgency) : waiter(urgency) {}

    Slots::Waiter waiter;

    Step step = Step::queued;
    Clock::time_point stirred = Clock::now();  // when it came to this step
    bool relieves = false;                     // another flight of this process, which hangs
    bool landed = false;
    bool published = false;  // or there is nothing to publish
    Value value;             // null where making it failed
    std::condition_variable changed;
};

struct SingleFlight::State {
    State(int slot_count, std::chrono::nanoseconds longest_wait)
        : slots(slot_count), patience(longest_wait) {}

    std::mutex mutex;
    // Those that are under way, and those that have made something here.
    std::unordered_map<Digest, std::shared_ptr<Flight>> flights;
    Slots slots;
    Patience patience;  // with threads of this process
};

// Lands the flight whatever happens: without a value where it was not given one.
class SingleFlight::Pilot {
  public:
    Pilot(State& state, const Digest& key, std::shared_ptr<Flight> flight)
        : state_(state), key_(key), flight_(std::move(flight)) {}
    Pilot(const Pilot&) = delete;
    Pilot& operator=(const Pilot&) = delete;
    ~Pilot() {
        const std::lock_guard lock(state_.mutex);
        if (!flight_->landed) leave();
        flight_->landed = flight_->published = true;
        flight_->changed.notify_all();
    }

    void go_on_to(Flight::Step step) {
        const std::lock_guard lock(state_.mutex);
        flight_->stirred = Clock::now();
        flight_->step = step;
    }

    void land_with_made(Value value) {
        const std::lock_guard lock(state_.mutex);
        flight_->value = std::move(value);
        flight_->landed = true;
        flight_->changed.notify_all();
    }

    // Whoever asks later finds it where this one did.
    void land_with_found(Value value) {
        const std::lock_guard lock(state_.mutex);
        leave();
        flight_->value = std::move(value);
        flight_->landed = true;
        flight_->changed.notify_all();
    }

  private:
    void leave() {
        const auto mine = state_.flights.find(key_);
        if (mine != state_.flights.end() && mine->second == flight_) state_.flights.erase(mine);
    }

    State& state_;
    const Digest key_;
    const std::shared_ptr<Flight> flight_;
};

SingleFlight::SingleFlight(const Store& store, int slots)
    : store_(store), state_([slots, longest = store.options().lock_wait](State* of_parent) {
          auto state = std::make_unique<State>(slots, longest);
          // A mutex that nobody held at fork guards a table that nobody was changing.
          if (of_parent != nullptr && of_parent->mutex.try_lock()) {
              for (const auto& [key, flight] : of_parent->flights) {
                  if (!flight->landed || !flight->value) continue;
                  auto copy = std::make_shared<Flight>(Urgency::background);
                  copy->value = flight->value;
                  copy->landed = copy->published = true;
                  state->flights.emplace(key, std::move(copy));
              }
              of_parent->mutex.unlock();
          }
          return state;
      }) {}

SingleFlight::~SingleFlight() = default;

std::shared_ptr<SingleFlight::Flight> SingleFlight::find(State& state, const Digest& key) {
    const std::lock_guard lock(state.mutex);
    const auto found = state.flights.find(key);
    return found == state.flights.end() ? nullptr : found->second;
}

// Null: another thread was first.
std::shared_ptr<SingleFlight::Flight> SingleFlight::start(State& state, const Digest& key,
                                                          const Flight* instead_of, Urgency urgency) {
    auto flight = std::make_shared<Flight>(urgency);
    flight->relieves = instead_of != nullptr;
    const std::lock_guard lock(state.mutex);
    const auto known = state.flights.find(key);
    if ((known == state.flights.end() ? nullptr : known->second.get()) != instead_of) return nullptr;
    state.flights.insert_or_assign(key, flight);
    return flight;
}

SingleFlight::Value SingleFlight::landed_value(State& state, const std::shared_ptr<Flight>& flight) const {
    if (!flight) return nullptr;
    const std::lock_guard lock(state.mutex);
    return flight->landed ? flight->value : nullptr;
}

// False: in vain.
bool SingleFlight::wait(State& state, Flight& flight, bool until_published) const {
    const Clock::time_point start = Clock::now();
    std::unique_lock lock(state.mutex);
    bool waited = false;
    while (until_published ? !flight.published : !flight.landed) {
        // A queue that moves is no hang. Where the other thread waits itself, it is the first to give up.
        auto since = std::max(start, flight.stirred);
        auto limit = state.patience.limit();
        if (flight.step == Flight::Step::queued) since = std::max(since, state.slots.last_given_back());
        if (flight.step != Flight::Step::making) limit *= 2;
        const auto end = since + limit;
        if (Clock::now() >= end) {
            state.patience.waited_in_vain();
            flight.changed.notify_all();  // the others' patience is shorter now
            lock.unlock();
            store_.tell_of_vain_wait(Clock::now() - start, kOtherThreads);
            return false;
        }
        flight.changed.wait_until(lock, end);
        waited = true;
    }
    if (waited) state.patience.wait_paid_off();
    return true;
}

SingleFlight::Obtained SingleFlight::obtain(const Digest& key, const Job& job) {
    State& state = state_.get();
    for (bool missed = false;;) {
        const auto known = find(state, key);
        const Value made = landed_value(state, known);
        if (made && job.accept(made)) return {made, Origin::memory};
        if (Value stored = job.look()) {
            store_.count(missed ? Event::wait : Event::hit);
            return {std::move(stored), missed ? Origin::waited : Origin::disk};
        }
        if (made) return {made, Origin::memory, false};
        if (!std::exchange(missed, true)) store_.count(Event::miss);

        if (!known) {
            if (auto flight = start(state, key, nullptr, job.urgency))
                return fly(state, key, std::move(flight), job);
            continue;
        }
        if (job.urgency == Urgency::caller) state.slots.raise(known->waiter);
        if (wait(state, *known, false)) {
            Value value = landed_value(state, known);
            if (value && job.accept(value)) {
                store_.count(Event::wait);
                return {std::move(value), Origin::waited};
            }
        } else if (auto flight = start(state, key, known.get(), job.urgency)) {
            return fly(state, key, std::move(flight), job);
        }
    }
}

void SingleFlight::settle(const Digest& key) {
    State& state = state_.get();
    if (const auto flight = find(state, key)) wait(state, *flight, true);
}

// Waits for whoever makes the key's value in another process, and for what appears meanwhile: not everybody
// that waits has to have the lock once. Null: the lock is had, or the wait was in vain.
SingleFlight::Value SingleFlight::look_until_locked(const Digest& key, const Job& job, Lock& lock) const {
    Value found;
    std::vector<Candidate> refused;  // what was refused once is not read again and again
    const Clock::time_point start = Clock::now();
    lock = store_.lock(key, [&] {
        if (job.cancelled && job.cancelled(Clock::now() - start)) return true;
        std::vector<Candidate> there = store_.candidates(key);
        if (there == refused) return false;
        refused = std::move(there);
        found = job.look();
        return found != nullptr;
    });
    return found ? found : job.look();
}

// What a flight has when its wait is over: a value that it found, or its turn to make one. The slot is
// given back before the lock.
struct SingleFlight::Turn {
    Value found{};
    Lock lock{LockState::unavailable, Status::success(), {}, nullptr};
    Slots::Slot slot{};
};

// Ends without a value and without a slot where the job was cancelled.
SingleFlight::Turn SingleFlight::wait_for_turn(State& state, const Digest& key, const Job& job,
                                               Flight& flight, Pilot& pilot) {
    const auto take_slot = [&] {
        pilot.go_on_to(Flight::Step::queued);
        const Clock::time_point start = Clock::now();
        auto slot = state.slots.take(state.patience, flight.waiter);
        if (!slot.held()) store_.tell_of_vain_wait(Clock::now() - start, kOtherThreads);
        pilot.go_on_to(Flight::Step::making);
        return slot;
    };
    Turn turn;
    for (;;) {
        turn.slot = take_slot();
        // The flight that this one relieves hangs with the lock, or would have it.
        turn.lock = store_.try_lock(key);
        if (turn.lock.state() != LockState::timed_out || flight.relieves) {
            // Between the look before and the lock another process may have come and gone.
            turn.found = job.look();
            return turn;
        }
        // Who waits for another process's make holds no slot.
        turn.slot.release();
        pilot.go_on_to(Flight::Step::awaiting_lock);
        turn.found = look_until_locked(key, job, turn.lock);
        pilot.go_on_to(Flight::Step::making);
        if (turn.found || is_cancelled(job)) return turn;
        if (turn.lock.state() == LockState::timed_out) {
            turn.slot = take_slot();
            return turn;
        }
        turn.slot = state.slots.try_take();
        if (turn.slot.held()) return turn;
        turn.lock.release();  // that other processes do not wait for this one's queue
    }
}

// Nothing: it is to be made. Where another process has the lock it is at the same, and is waited for.
std::optional<SingleFlight::Obtained> SingleFlight::fetch(const Digest& key, const Job& job,
                                                          Pilot& pilot) const {
    pilot.go_on_to(Flight::Step::making);
    const Lock lock = store_.try_lock(key);
    if (lock.state() == LockState::timed_out) return std::nullopt;
    if (Value found = job.look()) {
        pilot.land_with_found(found);
        store_.count(Event::wait);
        return Obtained{std::move(found), Origin::waited};
    }
    Value fetched = is_cancelled(job) ? nullptr : job.fetch();
    if (!fetched) return std::nullopt;
    pilot.land_with_made(fetched);
    return Obtained{std::move(fetched), Origin::fetched};
}

SingleFlight::Obtained SingleFlight::fly(State& state, const Digest& key, std::shared_ptr<Flight> flight,
                                         const Job& job) {
    Pilot pilot(state, key, flight);
    if (job.fetch && !flight->relieves) {
        if (auto fetched = fetch(key, job, pilot)) return *std::move(fetched);
    }
    Turn turn = wait_for_turn(state, key, job, *flight, pilot);
    if (turn.found) {
        pilot.land_with_found(turn.found);
        store_.count(Event::wait);
        return {std::move(turn.found), Origin::waited};
    }
    if (is_cancelled(job)) return {nullptr, Origin::cancelled, false};
    Value made = job.make();
    store_.count(Event::compile);
    turn.slot.release();
    pilot.land_with_made(made);
    job.publish(made);
    turn.lock.release();
    return {made, Origin::made, job.accept(made)};
}

std::size_t SingleFlight::waiting(Urgency urgency) const { return state_.get().slots.waiting(urgency); }

}  // namespace attnsmith::cache
