#include "cache/flight/single_flight.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <thread>

#include "fixture.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {

using namespace std::chrono_literals;
using testing::bytes_of;
using testing::ChildProcess;
using testing::entry_of;
using testing::kKey;
using testing::kOtherKey;
using testing::kVersion;
using testing::Signal;
using testing::TemporaryDirectory;
using testing::Warnings;

namespace {

constexpr auto kLong = 60s;  // only ever used up where a test fails
constexpr auto kShort = 50ms;

using Made = std::vector<std::byte>;

const Made& bytes(const SingleFlight::Value& value) { return *static_cast<const Made*>(value.get()); }

// A store, the flights over it, and jobs that make a key's text and count how often they do.
class Site {
  public:
    explicit Site(std::string directory, std::chrono::nanoseconds lock_wait = kLong, int slots = 4,
                  WarnCallback warn = {})
        : store({.directory = std::move(directory), .warn = std::move(warn), .lock_wait = lock_wait}),
          flights(store, slots) {}

    SingleFlight::Job job(const Digest& key) {
        SingleFlight::Job job;
        job.accept = [this](const SingleFlight::Value&) { return !refuses; };
        job.look = [this, key, accept = job.accept]() -> SingleFlight::Value {
            for (const Candidate& candidate : store.candidates(key)) {
                Result<Entry> entry = store.load(candidate);
                if (!entry) continue;
                auto value = std::make_shared<const Made>(std::move(entry->payload));
                if (accept(value)) return value;
            }
            return nullptr;
        };
        job.make = [this, key]() -> SingleFlight::Value {
            ++makes;
            if (during_make) during_make();
            return std::make_shared<const Made>(bytes_of(key.hex()));
        };
        job.publish = [this, key](const SingleFlight::Value& value) {
            if (store.options().directory.empty()) return;
            if (before_publish) before_publish();
            static_cast<void>(store.publish(key, kVersion, {.metadata = "{}", .payload = bytes(value)}));
        };
        return job;
    }

    SingleFlight::Obtained obtain(const Digest& key) {
        auto obtained = flights.obtain(key, job(key));
        if (bytes(obtained.value) != bytes_of(key.hex())) throw std::runtime_error("of another key");
        return obtained;
    }

    Store store;
    SingleFlight flights;
    std::atomic<int> makes{0};
    std::atomic<bool> refuses{false};
    std::function<void()> during_make;
    std::function<void()> before_publish;
};

// Lets threads in when it is opened.
class Gate {
  public:
    void open() {
        open_ = true;
        open_.notify_all();
    }
    void wait() const { open_.wait(false); }

  private:
    std::atomic<bool> open_{false};
};

}  // namespace

TEST_CASE("SingleFlight: says where a value comes from", "[cache][flight]") {
    const TemporaryDirectory temporary;
    Site site(temporary / "cache");
    CHECK(site.obtain(kKey).origin == Origin::made);
    CHECK(site.obtain(kKey).origin == Origin::memory);
    CHECK(Site(temporary / "cache").obtain(kKey).origin == Origin::disk);
    CHECK(site.makes == 1);
}

TEST_CASE("SingleFlight: what appears between the look and the lock is taken, not made again",
          "[cache][flight]") {
    const TemporaryDirectory temporary;
    Site site(temporary / "cache"), other(temporary / "cache");
    auto job = site.job(kKey);
    int looks = 0;
    // Another process makes it, and gives its lock back, right after this one saw that it is not there.
    job.look = [&, look = job.look] {
        SingleFlight::Value found = look();
        if (++looks == 1) {
            CHECK_FALSE(found);
            CHECK(other.obtain(kKey).origin == Origin::made);
        }
        return found;
    };
    const auto obtained = site.flights.obtain(kKey, job);
    CHECK(obtained.origin == Origin::waited);
    CHECK(looks == 2);
    CHECK(site.makes == 0);
}

TEST_CASE("SingleFlight: works without a directory", "[cache][flight]") {
    Warnings warnings;
    Site site("", kLong, 1, warnings.callback());
    CHECK(site.obtain(kKey).origin == Origin::made);
    CHECK(site.obtain(kKey).origin == Origin::memory);
    site.flights.settle(kKey);
    CHECK(site.makes == 1);
    CHECK(warnings.messages().empty());
}

TEST_CASE("SingleFlight: what was made and is refused is given back as such", "[cache][flight]") {
    const TemporaryDirectory temporary;
    Site site(temporary / "cache");
    site.refuses = true;
    CHECK_FALSE(site.obtain(kKey).accepted);
    CHECK_FALSE(site.obtain(kKey).accepted);
    site.refuses = false;
    CHECK(site.obtain(kKey).accepted);
    CHECK(site.makes == 1);
}

TEST_CASE("SingleFlight: a make that fails fails for its caller alone", "[cache][flight]") {
    const TemporaryDirectory temporary;
    Site site(temporary / "cache");
    Gate failing;
    site.during_make = [&] {
        if (site.makes > 1) return;
        failing.wait();
        throw std::runtime_error("no memory just now");
    };
    std::atomic<bool> failed{false};
    std::thread first([&] {
        try {
            site.obtain(kKey);
        } catch (const std::runtime_error&) {
            failed = true;
        }
    });
    while (site.makes == 0) std::this_thread::yield();
    std::optional<Origin> origin;
    std::thread second([&] { origin = site.obtain(kKey).origin; });
    std::this_thread::sleep_for(10ms);
    failing.open();
    first.join();
    second.join();
    CHECK(failed);
    CHECK(origin == Origin::made);
    CHECK(site.makes == 2);
}

TEST_CASE("SingleFlight: threads are served before the value is published", "[cache][flight]") {
    const TemporaryDirectory temporary;
    Site site(temporary / "cache");
    Gate making, published;
    site.during_make = [&] { making.wait(); };
    site.before_publish = [&] { published.wait(); };
    std::thread first([&] { site.obtain(kKey); });
    while (site.makes == 0) std::this_thread::yield();
    std::thread second([&] {
        if (site.obtain(kKey).origin == Origin::made) ++site.makes;
        // Nor does publishing keep the slots: this would wait for one.
    });
    making.open();
    second.join();
    CHECK(site.store.candidates(kKey).empty());
    // Other processes are still to wait for the entry.
    CHECK(site.store.try_lock(kKey).state() == LockState::timed_out);
    published.open();
    site.flights.settle(kKey);
    CHECK(site.store.candidates(kKey).size() == 1);
    first.join();
    CHECK(site.makes == 1);
}

TEST_CASE("SingleFlight: publishing takes no slot", "[cache][flight]") {
    const TemporaryDirectory temporary;
    Site site(temporary / "cache", kLong, 1);
    Gate published;
    std::atomic<int> publishing{0};
    site.before_publish = [&] {
        if (++publishing == 1) published.wait();
    };
    std::thread first([&] { site.obtain(kKey); });
    while (publishing == 0) std::this_thread::yield();
    CHECK(site.obtain(kOtherKey).origin == Origin::made);
    published.open();
    first.join();
}

TEST_CASE("SingleFlight: who waits for another process takes what appears, without the lock",
          "[cache][flight]") {
    const TemporaryDirectory temporary;
    Site site(temporary / "cache");
    const Signal holds;
    const Signal done;
    ChildProcess other([&] {
        const Lock lock = site.store.lock(kKey);
        holds.send();
        std::this_thread::sleep_for(30ms);
        static_cast<void>(
            site.store.publish(kKey, kVersion, {.metadata = "{}", .payload = bytes_of(kKey.hex())}));
        done.wait();  // with the lock
        return 0;
    });
    holds.wait();
    CHECK(site.obtain(kKey).origin == Origin::waited);
    CHECK(site.makes == 0);
    done.send();
    CHECK(other.wait() == 0);
}

TEST_CASE("SingleFlight: who waits for another process keeps no slot", "[cache][flight]") {
    const TemporaryDirectory temporary;
    Site site(temporary / "cache", kLong, 1);
    std::optional<Lock> elsewhere = site.store.lock(kKey);
    std::thread waiter([&] { site.obtain(kKey); });
    std::this_thread::sleep_for(20ms);
    CHECK(site.obtain(kOtherKey).origin == Origin::made);
    elsewhere.reset();
    waiter.join();
    CHECK(site.makes == 2);
}

namespace {

// Makes that are queued in the background of a site with one slot, which the first of them keeps until the
// gate opens.
struct Backlog {
    explicit Backlog(Site& of) : site(of) {
        site.during_make = [this] {
            if (site.makes == 1) busy.wait();
        };
        for (std::uint64_t i = 1; i <= 20; ++i) {
            threads.emplace_back([this, i] { obtain(Digest(i, i), Urgency::background); });
            while (i == 1 && site.makes == 0) std::this_thread::yield();  // the first has the slot
        }
        while (site.flights.waiting(Urgency::background) < 19) std::this_thread::yield();
    }

    void obtain(const Digest& key, Urgency urgency) {
        SingleFlight::Job job = site.job(key);
        job.urgency = urgency;
        job.make = [this, key, make = job.make] {
            SingleFlight::Value made = make();
            order.push_back(key);  // under the only slot
            return made;
        };
        site.flights.obtain(key, job);
    }

    Site& site;
    Gate busy;
    std::vector<Digest> order;
    std::vector<std::jthread> threads;
};

}  // namespace

TEST_CASE("SingleFlight: a make that a caller waits for is the next one", "[cache][flight]") {
    Site site("", kLong, 1);
    Backlog backlog(site);
    std::thread caller([&] { backlog.obtain(kKey, Urgency::caller); });
    while (site.flights.waiting(Urgency::caller) == 0) std::this_thread::yield();
    backlog.busy.open();
    caller.join();
    backlog.threads.clear();
    REQUIRE(backlog.order.size() == 21);
    CHECK(backlog.order[1] == kKey);
}

TEST_CASE("SingleFlight: a caller that joins a queued make moves it to the front", "[cache][flight]") {
    Site site("", kLong, 1);
    Backlog backlog(site);
    const Digest last(20, 20);
    std::thread caller([&] { backlog.obtain(last, Urgency::caller); });
    while (site.flights.waiting(Urgency::caller) == 0) std::this_thread::yield();
    backlog.busy.open();
    caller.join();
    backlog.threads.clear();
    REQUIRE(backlog.order.size() == 20);
    CHECK(backlog.order[1] == last);
}

TEST_CASE("SingleFlight: who is cancelled waits for no other process and makes nothing", "[cache][flight]") {
    const TemporaryDirectory temporary;
    Site site(temporary / "cache", kLong, 1);
    const Lock elsewhere = site.store.lock(kKey);
    std::atomic<bool> is_cancelled = false;
    SingleFlight::Job job = site.job(kKey);
    job.cancelled = [&](std::chrono::nanoseconds waited) {
        if (waited > kShort) is_cancelled = true;
        return is_cancelled.load();
    };
    const auto obtained = site.flights.obtain(kKey, job);
    CHECK(obtained.origin == Origin::cancelled);
    CHECK(obtained.value == nullptr);
    CHECK(site.makes == 0);
    // Neither the slot nor the key is kept.
    CHECK(site.obtain(kOtherKey).origin == Origin::made);
    job = site.job(Digest(3, 3));
    job.cancelled = [](std::chrono::nanoseconds) { return true; };
    CHECK(site.flights.obtain(Digest(3, 3), job).origin == Origin::cancelled);
    CHECK(site.obtain(Digest(3, 3)).origin == Origin::made);
    job = site.job(kOtherKey);
    job.cancelled = [](std::chrono::nanoseconds) { return true; };
    CHECK(site.flights.obtain(kOtherKey, job).origin == Origin::memory);
}

TEST_CASE("SingleFlight: locks that are never given back cost one wait for all keys, told once",
          "[cache][flight]") {
    const TemporaryDirectory temporary;
    Warnings warnings;
    constexpr int kKeys = 6;
    constexpr auto kWait = 600ms;
    Site site(temporary / "cache", kWait, 4, warnings.callback());
    std::vector<Lock> held;
    for (std::uint64_t i = 0; i < kKeys; ++i) held.push_back(site.store.lock(Digest(i, i)));
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 2; ++thread) {
        threads.emplace_back([&] {
            for (std::uint64_t i = 0; i < kKeys; ++i) site.obtain(Digest(i, i));
        });
    }
    for (std::thread& thread : threads) thread.join();
    const auto took = std::chrono::steady_clock::now() - start;
    CHECK(site.makes == kKeys);
    CHECK(took >= kWait);
    CHECK(took < 2 * kWait);
    REQUIRE(warnings.count() == 1);
    CHECK_THAT(warnings.messages().front(), Catch::Contains("in vain for another process"));
}

TEST_CASE("SingleFlight: after a wait that paid off others are long again", "[cache][flight]") {
    const TemporaryDirectory temporary;
    Patience patience(kLong);
    CHECK(patience.limit() == kLong);
    patience.waited_in_vain();
    CHECK(patience.limit() == kLong / 120.0);
    patience.wait_paid_off();
    CHECK(patience.limit() == kLong);
}

TEST_CASE("SingleFlight: a thread that hangs in its make blocks no other for ever", "[cache][flight]") {
    const TemporaryDirectory temporary;
    for (const int slots : {1, 4}) {
        Warnings warnings;
        Site site(temporary / (slots == 1 ? "one" : "four"), kShort, slots, warnings.callback());
        Gate hang;
        site.during_make = [&] {
            if (site.makes == 1) hang.wait();
        };
        std::thread hanging([&] { site.obtain(kKey); });
        while (site.makes == 0) std::this_thread::yield();
        CHECK(site.obtain(kKey).origin == Origin::made);
        CHECK(site.obtain(kKey).origin == Origin::memory);
        CHECK(site.makes == 2);
        REQUIRE(warnings.count() == 1);
        CHECK_THAT(warnings.messages().front(), Catch::Contains("another thread"));
        hang.open();
        hanging.join();
        // What came late takes nothing away.
        CHECK(site.obtain(kKey).origin == Origin::memory);
    }
}

TEST_CASE("SingleFlight: one wait in vain for a thread that hangs ends the others' waits",
          "[cache][flight]") {
    constexpr auto kWait = 1200ms;
    Site site("", kWait);
    Gate hang;
    site.during_make = [&] {
        if (site.makes == 1) hang.wait();
    };
    std::thread hanging([&] { site.obtain(kKey); });
    while (site.makes == 0) std::this_thread::yield();
    const auto start = std::chrono::steady_clock::now();
    Origin first_origin{}, second_origin{};
    std::thread first([&] { first_origin = site.obtain(kKey).origin; });
    std::this_thread::sleep_for(kWait * 3 / 4);
    second_origin = site.obtain(kKey).origin;
    CHECK(std::chrono::steady_clock::now() - start < kWait * 3 / 2);
    first.join();
    // Whoever of them wakes first makes the value, for both.
    CHECK((first_origin == Origin::made) != (second_origin == Origin::made));
    CHECK(site.makes == 2);
    hang.open();
    hanging.join();
}

TEST_CASE("SingleFlight: a queue that moves is waited for, however long", "[cache][flight]") {
    Warnings warnings;
    Site site("", 100ms, 1, warnings.callback());
    site.during_make = [] { std::this_thread::sleep_for(20ms); };
    std::vector<std::thread> threads;
    for (std::uint64_t i = 0; i < 24; ++i) {
        threads.emplace_back([&, i] { site.obtain(Digest(i / 2, 0)); });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(site.makes == 12);
    CHECK(warnings.messages().empty());
}

TEST_CASE("SingleFlight: a child forked while others make has its values all the same",
          "[cache][flight][fork]") {
    const TemporaryDirectory temporary;
    for (const bool stored : {true, false}) {
        Site site(stored ? temporary / "cache" : "", kLong, 1);
        site.obtain(Digest(7, 7));
        Gate making;
        std::atomic<bool> in_child{false};
        site.during_make = [&] {
            if (!in_child) making.wait();
        };
        std::thread maker([&] { site.obtain(kKey); });
        while (site.makes < 2) std::this_thread::yield();
        // One that waits for it as well, in the table; and the only slot is taken.
        std::thread waiter([&] { site.obtain(kKey); });
        std::this_thread::sleep_for(5ms);
        const Signal done;
        ChildProcess child([&] {
            in_child = true;
            if (site.obtain(kOtherKey).origin != Origin::made) return 1;
            if (site.obtain(Digest(7, 7)).origin != Origin::memory) return 2;  // made before the fork
            // The parent has the key's lock, and gives it back when it is told to.
            done.send();
            const Origin origin = site.obtain(kKey).origin;
            return origin == (stored ? Origin::waited : Origin::made) || origin == Origin::disk ? 0 : 3;
        });
        done.wait();
        if (stored) std::this_thread::sleep_for(20ms);
        making.open();
        CHECK(child.wait() == 0);
        maker.join();
        waiter.join();
        CHECK(site.makes == 2);
    }
}

TEST_CASE("SingleFlight: works in children forked at any moment", "[cache][flight][fork]") {
    if (!testing::kMayForkBesideBusyThreads) {
        WARN("not run: children of AddressSanitizer forked beside busy threads may hang");
        return;
    }
    const TemporaryDirectory temporary;
    Site site(temporary / "cache", kLong, 2);
    std::atomic<bool> stop{false};
    std::vector<std::thread> busy;
    for (std::uint64_t thread = 0; thread < 3; ++thread) {
        busy.emplace_back([&, thread] {
            for (std::uint64_t i = 0; !stop; ++i) site.obtain(Digest(i % 64 / 2, i + thread / 2));
        });
    }
    int good_children = 0;
    for (std::uint64_t round = 0; round < 30; ++round) {
        ChildProcess child([&] {
            for (std::uint64_t i = 0; i < 3; ++i) site.obtain(Digest(~round, i));
            site.obtain(Digest(~round, 0));
            return 0;
        });
        good_children += child.wait() == 0 ? 1 : 0;
    }
    stop = true;
    for (std::thread& thread : busy) thread.join();
    CHECK(good_children == 30);
}

}  // namespace attnsmith::cache
