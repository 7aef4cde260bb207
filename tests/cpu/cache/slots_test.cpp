#include "cache/flight/slots.hpp"

#include <atomic>
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
            threads.emplace_back([&] {
                for (int round = 0; round < 200; ++round) {
                    const Slots::Slot slot = slots.take(patience);
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
    Slots::Slot held = slots.take(patience);
    CHECK_FALSE(slots.take(patience).held());
    CHECK(patience.limit() < 600ms);
    std::jthread giver([&] {
        std::this_thread::sleep_for(1ms);
        held.release();
    });
    CHECK(slots.take(patience).held());
    CHECK(patience.limit() == 600ms);
}

}  // namespace attnsmith::cache
