#include "cache/flight/slots.hpp"

#include <atomic>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"

namespace attnsmith::cache {

using namespace std::chrono_literals;

TEST_CASE("Slots: bound what runs at a time", "[cache][slots]") {
    Slots slots(3);
    Patience patience(60s);
    std::atomic<int> inside{0}, most{0};
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < 12; ++i) {
            threads.emplace_back([&, i] {
                Slots::Waiter waiter(i % 2 == 0 ? Urgency::caller : Urgency::background);
                for (int round = 0; round < 200; ++round) {
                    const Slots::Slot slot = slots.take(patience, waiter);
                    const int now = ++inside;
                    int seen = most;
                    while (now > seen && !most.compare_exchange_weak(seen, now)) {
                    }
                    std::this_thread::yield();
                    --inside;
                }
            });
        }
    }
    CHECK(most <= 3);
    CHECK(most > 1);
}

TEST_CASE("Slots: a slot that was waited for and had makes waits long again", "[cache][slots]") {
    Slots slots(1);
    Patience patience(600ms);
    Slots::Waiter waiter(Urgency::caller);
    Slots::Slot held = slots.take(patience, waiter);
    CHECK_FALSE(slots.take(patience, waiter).held());
    CHECK(patience.limit() < 600ms);
    bool paid_off = false;
    // A wait is of 5 ms; a busy machine may miss it, or have the slot free before the wait begins.
    for (int attempt = 0; attempt < 100 && !paid_off; ++attempt) {
        std::jthread giver([&] {
            std::this_thread::sleep_for(1ms);
            held.release();
        });
        const bool had = slots.take(patience, waiter).held();
        giver.join();
        paid_off = patience.limit() == 600ms;
        CHECK((had || !paid_off));
        Patience longer(60s);
        held = slots.take(longer, waiter);
    }
    CHECK(paid_off);
}

namespace {

// Threads that wait for the only slot, in the order in which they were added, and the order in which they had
// it.
class Line {
  public:
    void add(const std::string& name, Urgency urgency) {
        waiters_.emplace_back(urgency);
        threads_.emplace_back([this, name, &waiter = waiters_.back()] {
            const Slots::Slot slot = slots.take(patience_, waiter);
            served_.push_back(name);  // by the thread with the slot alone
        });
        std::this_thread::sleep_for(20ms);  // until it is in the queue
    }
    void raise(std::size_t number) {
        slots.raise(*std::next(waiters_.begin(), static_cast<std::ptrdiff_t>(number)));
    }
    std::vector<std::string> served() {
        threads_.clear();
        return served_;
    }

    Slots slots{1};

  private:
    Patience patience_{60s};
    std::list<Slots::Waiter> waiters_;
    std::vector<std::string> served_;
    std::vector<std::jthread> threads_;
};

}  // namespace

TEST_CASE("Slots: callers go before the background, each in order", "[cache][slots]") {
    Line line;
    Slots::Slot held = line.slots.try_take();
    line.add("background 1", Urgency::background);
    line.add("background 2", Urgency::background);
    line.add("caller 1", Urgency::caller);
    line.add("caller 2", Urgency::caller);
    held.release();
    CHECK(line.served() == std::vector<std::string>{"caller 1", "caller 2", "background 1", "background 2"});
    CHECK(line.slots.try_take().held());
}

TEST_CASE("Slots: a raised waiter goes before the background", "[cache][slots]") {
    Line line;
    Slots::Slot held = line.slots.try_take();
    line.add("background 1", Urgency::background);
    line.add("background 2", Urgency::background);
    line.add("background 3", Urgency::background);
    line.raise(2);
    line.raise(2);
    held.release();
    CHECK(line.served() == std::vector<std::string>{"background 3", "background 1", "background 2"});
    CHECK(line.slots.try_take().held());
}

TEST_CASE("Slots: a waiter that gave up is not served", "[cache][slots]") {
    Slots slots(1);
    Patience patience(30ms);
    Slots::Waiter waiter(Urgency::background);
    Slots::Slot held = slots.try_take();
    CHECK_FALSE(slots.take(patience, waiter).held());
    held.release();
    CHECK(slots.try_take().held());
}

}  // namespace attnsmith::cache
