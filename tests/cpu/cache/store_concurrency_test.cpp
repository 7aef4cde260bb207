// Many threads and many processes at once.

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "cache/store/store.hpp"
#include "fixture.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {

using namespace std::chrono_literals;
using testing::ChildProcess;
using testing::count_files;
using testing::entry_of;
using testing::kKey;
using testing::kVersion;
using testing::load_newest;
using testing::Signal;
using testing::TemporaryDirectory;

namespace {

void run_threads(int count, const std::function<void(int)>& work) {
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
    for (std::thread& thread : threads) thread.join();
}

// What an engine does for a kernel: look, lock, look again, compile, publish. Each compile leaves one byte.
bool get_or_compile(const Store& store, const Digest& key, const std::string& compiles) {
    if (!store.candidates(key).empty()) return store.load(store.candidates(key).front()).ok();
    const Lock lock = store.lock(key);
    if (!lock.held()) return false;
    if (const auto candidates = store.candidates(key); !candidates.empty()) {
        return store.load(candidates.front()).ok();
    }
    const int file = ::open(compiles.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const bool counted = ::write(file, "c", 1) == 1;
    ::close(file);
    std::this_thread::sleep_for(3ms);
    return counted && store.publish(key, kVersion, entry_of(key.hex())).ok();
}

}  // namespace

TEST_CASE("Store: threads that publish the same key all succeed and readers see whole entries",
          "[cache][store][concurrency]") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    constexpr int kWriters = 4;
    constexpr int kRounds = 20;
    std::atomic<int> failures{0};
    std::atomic<int> writers_left{kWriters};
    run_threads(2 * kWriters, [&](int thread) {
        if (thread < kWriters) {
            const Entry entry = entry_of(std::string(1000 * static_cast<std::size_t>(thread + 1), 'x'));
            for (int round = 0; round < kRounds; ++round) {
                if (!store.publish(kKey, kVersion, entry).ok()) ++failures;
            }
            --writers_left;
            return;
        }
        while (writers_left > 0) {
            for (const Candidate& candidate : store.candidates(kKey)) {
                const auto entry = store.load(candidate);
                if (!entry || entry->payload.size() % 1000 != 0) ++failures;
            }
        }
    });
    CHECK(failures == 0);
    CHECK(store.candidates(kKey).size() == 1);
    CHECK(count_files(temporary / "cache/staging") == 0);
    CHECK(store.verify().bad.empty());
}

TEST_CASE("Store: threads compile each of many keys once", "[cache][store][concurrency]") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    constexpr std::uint64_t kKeys = 5;
    std::atomic<int> failures{0};
    run_threads(8, [&](int thread) {
        for (std::uint64_t i = 0; i < kKeys; ++i) {
            const Digest key(i + static_cast<std::uint64_t>(thread) % 2, 0);
            if (!get_or_compile(store, key, temporary / "compiles")) ++failures;
        }
    });
    CHECK(failures == 0);
    CHECK(testing::read_text(temporary / "compiles").size() == kKeys + 1);
}

TEST_CASE("Store: processes compile each of many keys once", "[cache][store][concurrency]") {
    const TemporaryDirectory temporary;
    constexpr std::uint64_t kKeys = 5;
    std::vector<ChildProcess> processes;
    for (int i = 0; i < 8; ++i) {
        processes.emplace_back([&] {
            const Store store({.directory = temporary / "cache"});
            for (std::uint64_t key = 0; key < kKeys; ++key) {
                if (!get_or_compile(store, Digest(key, key), temporary / "compiles")) return 1;
            }
            return 0;
        });
    }
    for (ChildProcess& process : processes) CHECK(process.wait() == 0);
    CHECK(testing::read_text(temporary / "compiles").size() == kKeys);
    CHECK(Store({.directory = temporary / "cache"}).list().entries.size() == kKeys);
}

TEST_CASE("Store: a process that is killed while it holds a key's lock blocks nobody",
          "[cache][store][concurrency]") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache", .lock_wait = 60s});
    const Signal holds;
    ChildProcess holder([&] {
        const Lock lock = store.lock(kKey);
        holds.send();
        ::pause();
        return 1;
    });
    holds.wait();
    CHECK(Store({.directory = temporary / "cache", .lock_wait = 10ms}).lock(kKey).state() ==
          LockState::timed_out);
    holder.kill();
    CHECK(store.lock(kKey).held());
}

TEST_CASE("Store: processes killed in the middle of publishing leave nothing bad behind",
          "[cache][store][concurrency]") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    const Entry entry = entry_of(std::string(20'000, 'x'));
    for (int round = 0; round < 20; ++round) {
        const Signal started;
        ChildProcess publisher([&] {
            started.send();
            for (;;) static_cast<void>(store.publish(kKey, {13, 0, round}, entry));
            return 0;
        });
        started.wait();
        std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
        publisher.kill();
    }
    CHECK(store.verify().bad.empty());
    for (const Candidate& candidate : store.candidates(kKey)) CHECK(store.load(candidate).value() == entry);
    CHECK(store.publish(kKey, kVersion, entry).ok());
    CHECK(store.lock(kKey).state() == LockState::acquired);
}

TEST_CASE("Store: clearing while others publish, load and lock breaks none of them",
          "[cache][store][concurrency]") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    std::atomic<int> failures{0};
    std::atomic<int> inside{0};
    std::atomic<int> workers_left{4};
    run_threads(5, [&](int thread) {
        if (thread == 4) {
            while (workers_left > 0) {
                if (!store.clear().status.ok()) ++failures;
            }
            return;
        }
        for (int round = 0; round < 10; ++round) {
            {
                const Lock lock = store.lock(kKey);
                if (!lock.held() || inside.fetch_add(1) != 0) ++failures;
                --inside;
            }
            if (!store.publish(kKey, kVersion, entry_of("payload")).ok()) ++failures;
            for (const Candidate& candidate : store.candidates(kKey)) {
                const auto entry = store.load(candidate);
                if (!entry && entry.status().error_number != ENOENT) ++failures;
            }
        }
        --workers_left;
    });
    CHECK(failures == 0);
    CHECK(store.verify().bad.empty());
}

TEST_CASE("Store: works in a child forked while other threads use it", "[cache][store][concurrency]") {
    if (!testing::kMayForkBesideBusyThreads) {
        WARN("not run: children of AddressSanitizer forked beside busy threads may hang");
        return;
    }
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    REQUIRE(store.publish(kKey, kVersion, entry_of("payload")).ok());
    std::atomic<bool> stop{false};
    std::atomic<int> busy_failures{0};
    std::thread busy([&] {
        for (std::uint64_t i = 0; !stop; i = (i + 1) % 3) {
            const Lock lock = store.lock(Digest(i, 1));
            if (!lock.held() || !store.publish(Digest(i, 1), kVersion, entry_of("busy")).ok())
                ++busy_failures;
        }
    });
    int good_children = 0;
    for (int round = 0; round < 10; ++round) {
        ChildProcess child([&] {
            if (load_newest(store, kKey) != entry_of("payload")) return 1;
            if (!store.lock(kKey).held()) return 2;
            return store.publish(kKey, kVersion, entry_of("payload")).ok() ? 0 : 3;
        });
        good_children += child.wait() == 0 ? 1 : 0;
    }
    stop = true;
    busy.join();
    CHECK(good_children == 10);
    CHECK(busy_failures == 0);
}

}  // namespace attnsmith::cache
