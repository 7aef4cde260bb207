#include "cache/remote/breaker.hpp"

#include <algorithm>

#include "support/catch.hpp"

using namespace attnsmith::cache;
using namespace std::chrono_literals;
using Outcome = Breaker::Outcome;

namespace {

// A remote that is asked for one kernel after the other, each time as long as it is allowed to take, at most
// `answers_in`.
struct Asking {
    Breaker breaker;
    Breaker::Clock::time_point now{};
    std::chrono::nanoseconds lost{};

    bool ask(std::chrono::nanoseconds answers_in, Outcome outcome, bool counts_time = true) {
        const auto allowed = breaker.allow(now, 2s, counts_time);
        if (!allowed) return false;
        const bool too_late = answers_in > *allowed;
        const auto began = now;
        now += too_late ? *allowed : answers_in;
        lost += now - began;
        breaker.note(began, now, too_late ? Outcome::failed : outcome, counts_time);
        return true;
    }
};

}  // namespace

TEST_CASE("three failures in a row close a remote for a while") {
    Asking remote;
    CHECK(remote.ask(1ms, Outcome::failed));
    CHECK(remote.ask(1ms, Outcome::failed));
    CHECK(remote.ask(1ms, Outcome::fetched));
    CHECK(remote.ask(1ms, Outcome::failed));
    CHECK(remote.ask(1ms, Outcome::absent));
    CHECK(remote.ask(1ms, Outcome::failed));
    CHECK(remote.ask(1ms, Outcome::failed));
    CHECK(remote.ask(1ms, Outcome::failed));
    CHECK_FALSE(remote.ask(1ms, Outcome::fetched));
    remote.now += Breaker::kRest - 10ms;
    CHECK_FALSE(remote.ask(1ms, Outcome::fetched));
    remote.now += 20ms;
    CHECK(remote.ask(1ms, Outcome::fetched));
}

TEST_CASE("a remote that answers is asked for as long as it answers") {
    Asking remote;
    for (int i = 0; i < 1000; ++i) REQUIRE(remote.ask(250ms, Outcome::fetched));
    for (int i = 0; i < 400; ++i) REQUIRE(remote.ask(3ms, Outcome::absent));
}

// Whatever it does: hang, be slow, have nothing, and all of it by turns.
TEST_CASE("a remote costs three seconds at most, however long a prewarm is") {
    const auto hangs = [](int) { return std::pair(std::chrono::nanoseconds(1h), Outcome::failed); };
    const auto is_slow = [](int) { return std::pair(std::chrono::nanoseconds(1s), Outcome::fetched); };
    const auto has_nothing = [](int) { return std::pair(std::chrono::nanoseconds(80ms), Outcome::absent); };
    const auto by_turns = [](int i) {
        return i % 3 == 0 ? std::pair(std::chrono::nanoseconds(1900ms), Outcome::fetched)
                          : std::pair(std::chrono::nanoseconds(700ms), Outcome::failed);
    };
    const auto lost_by = [](const auto& what) {
        Asking remote;
        std::chrono::nanoseconds lost{};
        for (int i = 0; i < 2000; ++i) {
            const auto [takes, outcome] = what(i);
            const auto before = remote.now;
            remote.ask(takes, outcome);
            const auto took = remote.now - before;
            lost += took - (outcome == Outcome::fetched && took == takes ? 300ms : 0ms);
            remote.now += 700ms;  // a compile
        }
        return lost;
    };
    CHECK(lost_by(hangs) <= 3s);
    CHECK(lost_by(is_slow) <= 3s);
    CHECK(lost_by(has_nothing) <= 3s);
    CHECK(lost_by(by_turns) <= 3s);
}

// Eight threads save eight compiles in the time of one, and lose their time at once.
TEST_CASE("a remote that is quick and hangs by turns costs threads no more") {
    constexpr int kThreads = 8;
    constexpr auto kCompile = 300ms;
    Breaker breaker;
    Breaker::Clock::time_point now{};
    std::chrono::nanoseconds lost{};
    const auto all_ask = [&](std::chrono::nanoseconds answers_in) {
        const auto allowed = breaker.allow(now, 2s, true);
        if (!allowed) return;
        const bool hangs = answers_in > *allowed;
        const auto began = now;
        now += hangs ? *allowed : answers_in;
        lost += hangs ? now - began : now - began - kCompile;
        for (int i = 0; i < kThreads; ++i)
            breaker.note(began, now, hangs ? Breaker::Outcome::failed : Breaker::Outcome::fetched, true);
    };
    std::chrono::nanoseconds most_lost{};
    for (int i = 0; i < 100; ++i) {
        all_ask(1ms);
        all_ask(1h);
        most_lost = std::max(most_lost, lost);
        now += Breaker::kRest;
    }
    CHECK(most_lost <= 3s);
}

TEST_CASE("what threads lose at once is lost once: after one rest the remote is asked again") {
    Breaker breaker;
    Breaker::Clock::time_point now{};
    for (const auto may_lose : {1200ms, 600ms, 300ms}) {
        CHECK(breaker.allow(now, 2s, true) == may_lose);
        const auto began = now;
        now += may_lose;
        int closed = 0;
        for (int i = 0; i < 8; ++i)
            closed += breaker.note(began, now + i * 1ms, Breaker::Outcome::failed, true) ? 1 : 0;
        CHECK(closed == 1);
        CHECK_FALSE(breaker.allow(now + Breaker::kRest - 1ms, 2s, true));
        now += Breaker::kRest;
    }
}

TEST_CASE("where nothing else has the kernel, time is well spent") {
    Asking remote;
    for (int i = 0; i < 100; ++i) REQUIRE(remote.ask(1900ms, Outcome::fetched, false));
    CHECK(remote.breaker.allow(remote.now, 30s, false) == 30s);
}
