// A thousand processes killed in the middle of what they do to a directory, while others read it.

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <random>
#include <thread>

#include "cache/entries/layout.hpp"
#include "cache/store/store.hpp"
#include "fixture.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {

using namespace std::chrono_literals;
using testing::ChildProcess;
using testing::count_files;
using testing::kVersion;
using testing::load_newest;
using testing::Signal;
using testing::TemporaryDirectory;
using testing::Warnings;

namespace {

constexpr std::uint64_t kKeys = 24;
constexpr int kKills = 1000;
constexpr auto kLongestLife = 6ms;

Digest key_of(std::uint64_t i) { return digest_of(std::as_bytes(std::span(&i, 1))); }

// Whoever publishes a key publishes these bytes, so that a reader knows what is right.
Entry entry_for(std::uint64_t i) {
    const std::string payload(5'000 + 700 * i, static_cast<char>('a' + i));
    return {.metadata = fmt::format(R"({{"key":{}}})", i), .payload = testing::bytes_of(payload)};
}

// What a victim does until it is killed, given a store and a number of its own.
using Work = std::function<void(const Store&, std::uint64_t)>;

void publish_for_ever(const Store& store, std::uint64_t first) {
    for (std::uint64_t i = first;; ++i) {
        const std::uint64_t key = i % kKeys;
        const Lock lock = store.try_lock(key_of(key));
        static_cast<void>(store.publish(key_of(key), kVersion, entry_for(key)));
        store.count(Event::compile);
    }
}

void evict_for_ever(const Store& store, std::uint64_t first) {
    for (std::uint64_t i = first;; ++i) static_cast<void>(store.gc(1000 * (i % 200)));
}

void read_for_ever(const Store& store, std::uint64_t first) {
    for (std::uint64_t i = first;; ++i) {
        for (const Candidate& candidate : store.candidates(key_of(i % kKeys))) {
            static_cast<void>(store.load(candidate));
            store.count(Event::hit);
        }
        static_cast<void>(store.stat());
    }
}

void clear_for_ever(const Store& store, std::uint64_t) {
    for (;;) static_cast<void>(store.clear());
}

std::string bundle_of(const Store& store) { return store.options().directory + ".bundle"; }

void export_for_ever(const Store& store, std::uint64_t first) {
    for (std::uint64_t i = first;; ++i) {
        static_cast<void>(store.export_bundle(
            bundle_of(store), [i](const ListedEntry& entry) { return (entry.key.low() + i) % 3 != 0; }));
    }
}

void import_for_ever(const Store& store, std::uint64_t) {
    for (;;) static_cast<void>(store.import_bundle(bundle_of(store)));
}

struct Seen {
    std::atomic<std::uint64_t> right{0};
    std::atomic<std::uint64_t> wrong{0};   // served, but not what was published
    std::atomic<std::uint64_t> broken{0};  // not served, but never to be there at all
};

void look_at_all(const Store& store, Seen& seen) {
    for (std::uint64_t i = 0; i < kKeys; ++i) {
        for (const Candidate& candidate : store.candidates(key_of(i))) {
            const auto entry = store.load(candidate);
            if (entry) ++(*entry == entry_for(i) ? seen.right : seen.wrong);
            if (entry.status().error_number == EBADMSG) ++seen.broken;
        }
    }
}

}  // namespace

TEST_CASE("Store: a thousand kills leave nothing bad, no lock stuck and a cache that works",
          "[cache][store][concurrency]") {
    const TemporaryDirectory temporary;
    const std::string directory = temporary / "cache";
    const Work kinds[] = {publish_for_ever, publish_for_ever, evict_for_ever, read_for_ever,
                          clear_for_ever,   export_for_ever,  import_for_ever};

    // A reader that lives all the time.
    std::atomic<bool> stop{false};
    const std::string bundle = directory + ".bundle";
    Seen seen;
    Seen in_bundles;
    std::thread reader([&] {
        const Store store({.directory = directory});
        while (!stop) {
            look_at_all(store, seen);
            // Whole or not there, at any time.
            if (!std::filesystem::exists(bundle)) continue;
            Warnings warnings;
            const Store bundled({.directory = "", .read_only_layers = {bundle}, .warn = warnings.callback()});
            look_at_all(bundled, in_bundles);
            in_bundles.broken += warnings.count();
            std::this_thread::sleep_for(1ms);
        }
    });

    std::mt19937 random(20261121);
    std::uniform_int_distribution<int> life(0, std::chrono::microseconds(kLongestLife).count());
    int killed = 0;
    for (int round = 0; killed < kKills; ++round) {
        std::vector<ChildProcess> victims;
        for (std::size_t i = 0; i < 2; ++i) {
            const Work& work = kinds[random() % std::size(kinds)];
            const std::uint64_t first = random();
            victims.emplace_back([&directory, &work, first] {
                const Store store({.directory = directory});
                work(store, first);
                return 0;
            });
        }
        std::this_thread::sleep_for(std::chrono::microseconds(life(random)));
        for (ChildProcess& victim : victims) killed += victim.kill() == -SIGKILL ? 1 : 0;
        REQUIRE(round < 2 * kKills);
    }
    stop = true;
    reader.join();
    CHECK(seen.wrong == 0);
    CHECK(seen.broken == 0);
    CHECK(seen.right > 100);
    CHECK(in_bundles.wrong == 0);
    CHECK(in_bundles.broken == 0);
    CHECK(in_bundles.right > 100);

    const Store store({.directory = directory, .lock_wait = 0ms});
    const VerifyReport report = store.verify();
    CHECK(report.bad.empty());
    CHECK(store.stat().quarantined == 0);
    CHECK_FALSE(store.gc(std::nullopt).busy);
    for (std::uint64_t i = 0; i < kKeys; ++i) {
        CHECK(store.lock(key_of(i)).state() == LockState::acquired);
        CHECK(store.publish(key_of(i), kVersion, entry_for(i)).ok());
        CHECK(load_newest(store, key_of(i)) == entry_for(i));
    }
    CHECK(store.export_bundle(bundle, [](const ListedEntry&) { return true; }).ok());
    CHECK(store.import_bundle(bundle).ok());
    // What the dead left in staging goes when it is old enough.
    for (const auto& file : std::filesystem::directory_iterator(directory + "/staging")) {
        std::filesystem::last_write_time(file, std::filesystem::file_time_type::clock::now() - 2h);
    }
    static_cast<void>(store.gc(std::nullopt));
    CHECK(count_files(directory + "/staging") == 0);
}

}  // namespace attnsmith::cache
