// Stamps, the limit, and what goes when it is reached.

#include "cache/entries/evictor.hpp"

#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "cache/entries/layout.hpp"
#include "cache/store/store.hpp"
#include "faulty_file_system.hpp"
#include "fixture.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {

using namespace std::chrono_literals;
using testing::ChildProcess;
using testing::count_files;
using testing::entry_of;
using testing::FaultyFileSystem;
using testing::kKey;
using testing::kVersion;
using testing::load_newest;
using testing::Operation;
using testing::TemporaryDirectory;
using testing::Warnings;

namespace {

const Entry kEntry = entry_of(std::string(20'000, 'x'));

Digest key_of(std::uint64_t i) { return digest_of(std::as_bytes(std::span(&i, 1))); }

struct Limited {
    TemporaryDirectory temporary;
    std::string directory = temporary / "cache";
    Warnings warnings;
    FaultyFileSystem files;

    Options options(std::uint64_t max_bytes) {
        return {.directory = directory,
                .max_bytes = max_bytes,
                .file_system = &files,
                .warn = warnings.callback(),
                .lock_wait = 10s};
    }
    std::string file_of(std::uint64_t i) const {
        return directory + "/" + layout::entry_path({key_of(i), kVersion});
    }
    bool has(std::uint64_t i) const { return std::filesystem::exists(file_of(i)); }

    void age(const std::string& path, std::chrono::minutes age) const {
        std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - age);
    }
    std::chrono::seconds age_of(const std::string& path) const {
        return std::chrono::duration_cast<std::chrono::seconds>(
            std::filesystem::file_time_type::clock::now() - std::filesystem::last_write_time(path));
    }
    // Entry i was used i minutes after the first, and all of them long ago.
    void fill(std::uint64_t entries) {
        const Store unlimited({.directory = directory, .max_bytes = 0});
        for (std::uint64_t i = 0; i < entries; ++i) {
            REQUIRE(unlimited.publish(key_of(i), kVersion, kEntry).ok());
            age(file_of(i), 24h - std::chrono::minutes(i));
        }
    }
    // What one entry takes on this file system.
    std::uint64_t entry_bytes() const { return posix_file_system().stat({file_of(0), {}})->allocated_bytes; }
    std::uint64_t entries() const { return Store({.directory = directory}).stat().entries; }
};

}  // namespace

TEST_CASE("Store: a hit renews an old stamp, and no other", "[cache][evictor]") {
    Limited test;
    test.fill(1);
    const Store store(test.options(0));
    test.age(test.file_of(0), 50min);
    static_cast<void>(load_newest(store, key_of(0)));
    CHECK(test.files.count(Operation::file_touch) == 0);
    CHECK(test.age_of(test.file_of(0)) > 45min);

    const std::chrono::minutes age = GENERATE(61min, 24h, -25h);  // the last: a clock was wrong
    test.age(test.file_of(0), age);
    static_cast<void>(load_newest(store, key_of(0)));
    CHECK(std::chrono::abs(test.age_of(test.file_of(0))) < 5min);
    static_cast<void>(load_newest(store, key_of(0)));
    CHECK(test.files.count(Operation::file_touch) == 1);
}

TEST_CASE("Store: a stamp that cannot be set, or is in a layer, is let be", "[cache][evictor]") {
    Limited test;
    test.fill(1);
    test.files.fail_always(Operation::file_touch, EROFS);
    const Store store(test.options(0));
    CHECK(load_newest(store, key_of(0)) == kEntry);
    CHECK(test.warnings.count() == 0);
    test.files.heal();

    const Store above({.directory = test.temporary / "own", .read_only_layers = {test.directory}});
    CHECK(load_newest(above, key_of(0)) == kEntry);
    CHECK(test.age_of(test.file_of(0)) > 23h);
}

TEST_CASE("Store: gc removes the least recently used until the rest fits", "[cache][evictor]") {
    Limited test;
    test.fill(10);
    const std::uint64_t bytes = test.entry_bytes();
    const Store store(test.options(6 * bytes));
    static_cast<void>(load_newest(store, key_of(0)));  // the oldest until now
    const EvictionReport report = store.gc(std::nullopt);
    CHECK(report.status.ok());
    CHECK_FALSE(report.busy);
    CHECK(report.entries == 4);
    CHECK(report.bytes == 4 * bytes);
    CHECK(report.kept->entries == 6);
    CHECK(report.kept->bytes == 6 * bytes);
    for (std::uint64_t i = 0; i < 10; ++i) CHECK(test.has(i) == (i == 0 || i > 4));
    CHECK(store.stat().counters[Event::eviction] == 4);
    CHECK(store.stat().counters[Event::bytes_evicted] == 4 * bytes);
    CHECK(store.gc(std::nullopt).entries == 0);
}

TEST_CASE("Store: gc keeps what was used within the grace, but for an explicit bound", "[cache][evictor]") {
    Limited test;
    test.fill(4);
    for (std::uint64_t i = 2; i < 4; ++i) test.age(test.file_of(i), 110min);
    const std::uint64_t bytes = test.entry_bytes();
    const Store store(test.options(1));
    CHECK(store.gc(std::nullopt).entries == 2);
    CHECK(test.has(2));
    CHECK(test.has(3));
    CHECK(store.gc(bytes).entries == 1);
    CHECK(test.has(3));
    CHECK(store.gc(0).kept->entries == 0);
}

TEST_CASE("Store: a publish over the limit makes room, down to nine tenths", "[cache][evictor]") {
    Limited test;
    test.fill(20);
    const std::uint64_t bytes = test.entry_bytes();
    const Store store(test.options(20 * bytes));
    REQUIRE(store.publish(key_of(100), kVersion, kEntry).ok());
    CHECK(test.entries() == 18);
    CHECK(test.has(100));
    CHECK_FALSE(test.has(0));
    CHECK_FALSE(test.has(2));
    CHECK(test.has(3));
    CHECK(test.warnings.count() == 0);
}

TEST_CASE("Store: a publish below the limit looks at one shard only", "[cache][evictor]") {
    Limited test;
    test.fill(20);
    const Store store(test.options(kDefaultMaxBytes));
    test.files.reset_counts();
    REQUIRE(store.publish(key_of(100), kVersion, kEntry).ok());
    CHECK(test.files.count(Operation::list_files) == 1);
    CHECK(test.entries() == 21);
}

TEST_CASE("Store: a limit that cannot be kept is told once and not looked at each time", "[cache][evictor]") {
    Limited test;
    const Store store(test.options(1'000'000));
    for (std::uint64_t i = 0; i < 60; ++i) REQUIRE(store.publish(key_of(i), kVersion, kEntry).ok());
    CHECK(test.entries() == 60);
    REQUIRE(test.warnings.count() == 1);
    CHECK(test.warnings.messages()[0].find("over its limit of 1000000 bytes") != std::string::npos);
}

TEST_CASE("Store: what is young by the file server's clock stays, whatever ours says", "[cache][evictor]") {
    Limited test;
    test.fill(2);
    test.files.clock_ahead = GENERATE(-3h, 30h);
    const Store store(test.options(1));
    REQUIRE(store.publish(key_of(100), kVersion, kEntry).ok());
    CHECK(test.has(100));
    CHECK(test.entries() == 1);  // neither for ever
    const std::string live = test.directory + "/staging/" + layout::staging_name(kKey, 1);
    const std::string stale = test.directory + "/staging/" + layout::staging_name(kKey, 2);
    const auto leave_both = [&] {
        testing::write_text(live, "being written");
        testing::write_text(stale, "left");
        test.age(stale, 61min);
    };
    leave_both();
    CHECK(store.gc(std::nullopt).staging == 1);
    CHECK(std::filesystem::exists(live));
    leave_both();
    CHECK(store.verify().stale_staging_removed == 1);
    CHECK(std::filesystem::exists(live));
    leave_both();
    const ClearReport cleared = store.clear();
    CHECK(cleared.staging == 1);
    CHECK(cleared.staging_left == 1);
    CHECK(std::filesystem::exists(live));
}

TEST_CASE("Store: a stamp of the future is set to now, and its entry goes in its turn", "[cache][evictor]") {
    Limited test;
    test.fill(3);
    test.age(test.file_of(1), -25h);
    const Store store(test.options(1));
    CHECK(store.gc(std::nullopt).entries == 2);
    CHECK(test.has(1));
    CHECK(std::chrono::abs(test.age_of(test.file_of(1))) < 5min);

    // One that cannot be set would stay for ever.
    test.age(test.file_of(1), -25h);
    test.files.fail_always(Operation::file_touch, EACCES);
    CHECK(store.gc(std::nullopt).entries == 1);
    CHECK(test.entries() == 0);
}

TEST_CASE("Store: of entries with stamps of the future, those used before go first", "[cache][evictor]") {
    Limited test;
    test.fill(3);
    test.age(test.file_of(0), -25h);
    CHECK(Store(test.options(0)).gc(test.entry_bytes()).entries == 2);
    CHECK(test.has(0));
}

TEST_CASE("Store: leftovers that cannot be removed leave the limit as it is", "[cache][evictor]") {
    Limited test;
    test.fill(20);
    testing::write_text(test.directory + "/quarantine/" + layout::quarantine_name({kKey, kVersion}, 1),
                        std::string(17 << 20, 'x'));
    std::atomic<int> removals{0};
    test.files.fault = [&](Operation operation) {
        return operation == Operation::remove && removals.fetch_add(1) == 0 ? EACCES : 0;
    };
    const std::uint64_t bytes = test.entry_bytes();
    const Store store(test.options(20 * bytes));
    SECTION("after a publish") {
        REQUIRE(store.publish(key_of(100), kVersion, kEntry).ok());
        CHECK(test.entries() == 18);
        CHECK(test.warnings.count() == 0);
    }
    SECTION("by gc, which says so") {
        const EvictionReport report = store.gc(10 * bytes);
        CHECK(report.entries == 10);
        CHECK(report.quarantined == 0);
        CHECK(report.status.ok());
        CHECK(report.leftover_status.error_number == EACCES);
        REQUIRE(report.kept);
        CHECK(report.kept->bytes == 10 * bytes);
    }
}

TEST_CASE("Store: directories named as our files are not ours", "[cache][evictor]") {
    Limited test;
    test.fill(2);
    for (const std::string& name : {"staging/" + layout::staging_name(kKey, 1), layout::lock_path(kKey),
                                    "quarantine/" + layout::quarantine_name({kKey, kVersion}, 1),
                                    layout::entry_path({kKey, kVersion}), layout::counters_path(3)}) {
        std::filesystem::remove(test.directory + "/" + name);  // this process may count in that very file
        std::filesystem::create_directories(test.directory + "/" + name);
        test.age(test.directory + "/" + name, 48h);
    }
    const Store store(test.options(1));
    const EvictionReport report = store.gc(std::nullopt);
    CHECK(report.entries == 2);
    CHECK(report.status.ok());
    CHECK(report.leftover_status.ok());
    const ClearReport cleared = store.clear();
    CHECK(cleared.status.to_string() == "ok");
    CHECK(std::filesystem::exists(test.directory + "/" + layout::entry_path({kKey, kVersion})));
}

TEST_CASE("Store: an entry that cannot be removed is kept, and the next one goes", "[cache][evictor]") {
    Limited test;
    test.fill(10);
    const std::uint64_t bytes = test.entry_bytes();
    const Store store(test.options(6 * bytes));
    std::atomic<int> removals{0};
    test.files.fault = [&](Operation operation) {
        return operation == Operation::remove && removals.fetch_add(1) == 0 ? EACCES : 0;
    };
    const EvictionReport report = store.gc(std::nullopt);
    CHECK(report.status.error_number == EACCES);
    CHECK(report.entries == 4);
    CHECK(report.kept->entries == 6);
    CHECK(test.has(0));
    CHECK_FALSE(test.has(4));
    CHECK(test.has(5));
}

TEST_CASE("Store: an entry that is gone by a stale handle ends no eviction", "[cache][evictor]") {
    Limited test;
    test.fill(4);
    const Store store(test.options(test.entry_bytes()));
    std::atomic<int> removals{0};
    test.files.fault = [&](Operation operation) {
        return operation == Operation::remove && removals.fetch_add(1) == 0 ? ESTALE : 0;
    };
    const EvictionReport report = store.gc(std::nullopt);
    CHECK(report.status.ok());
    CHECK(report.entries == 2);  // and one that somebody else removed
    CHECK(report.kept->entries == 1);
}

TEST_CASE("Store: a limit that a failure keeps from being kept is told with it", "[cache][evictor]") {
    Limited test;
    test.fill(20);
    const Store store(test.options(10 * test.entry_bytes()));
    test.files.fail_always(Operation::remove, EACCES);
    REQUIRE(store.publish(key_of(100), kVersion, kEntry).ok());
    REQUIRE(test.warnings.count() == 1);
    CHECK(test.warnings.messages()[0].find("Permission denied") != std::string::npos);
}

TEST_CASE("Store: gc says that it could not read a shard, and not what is kept", "[cache][evictor]") {
    Limited test;
    test.fill(4);
    const std::string shard = test.directory + "/ff";
    std::filesystem::remove_all(shard);
    testing::write_text(shard, "no directory");
    const Store store(test.options(1));
    const EvictionReport report = store.gc(std::nullopt);
    CHECK(report.status.error_number == ENOTDIR);
    CHECK(report.status.path == shard);
    CHECK(report.entries == 4);
    CHECK_FALSE(report.kept);
}

TEST_CASE("Store: what was read or replaced since the evictor looked stays", "[cache][evictor]") {
    Limited test;
    test.fill(2);
    const Store store(test.options(test.entry_bytes()));
    bool touched = false;
    test.files.fault = [&](Operation operation) {
        // The evictor's second look at the entry that is to go.
        if (operation == Operation::stat && !touched && std::filesystem::exists(test.directory + "/locks") &&
            test.files.count(Operation::list_files) > 3) {
            touched = true;
            test.age(test.file_of(0), 0min);
        }
        return 0;
    };
    const EvictionReport report = store.gc(std::nullopt);
    test.files.heal();
    CHECK(touched);
    CHECK(test.has(0));
    CHECK_FALSE(test.has(1));
    CHECK(report.entries == 1);
}

TEST_CASE("Store: gc removes what dead processes left, and only that", "[cache][evictor]") {
    Limited test;
    test.fill(1);
    const Store store(test.options(0));
    const auto leave = [&](const std::string& path, std::chrono::minutes age, std::size_t bytes) {
        testing::write_text(test.directory + "/" + path, std::string(bytes, 'x'));
        test.age(test.directory + "/" + path, age);
    };
    leave("staging/" + layout::staging_name(kKey, 1), 61min, 10);
    leave("staging/" + layout::staging_name(kKey, 2), -61min, 10);
    leave("staging/" + layout::staging_name(kKey, 3), 50min, 10);
    leave("quarantine/" + layout::quarantine_name({kKey, kVersion}, 1), 20min, 10 << 20);
    leave("quarantine/" + layout::quarantine_name({kKey, kVersion}, 2), 10min, 10 << 20);
    leave(layout::lock_path(kKey), 25h, 0);
    leave(layout::lock_path(key_of(1)), 23h, 0);
    const Lock held = store.lock(key_of(2));
    test.age(test.directory + "/" + layout::lock_path(key_of(2)), 25h);
    leave("notes.txt", 100h, 10);
    const EvictionReport report = store.gc(std::nullopt);
    CHECK(report.staging == 2);
    CHECK(report.quarantined == 1);
    CHECK(report.locks == 1);
    CHECK(report.entries == 0);
    CHECK(report.kept->entries == 1);
    CHECK(std::filesystem::exists(test.directory + "/quarantine/" +
                                  layout::quarantine_name({kKey, kVersion}, 2)));
    CHECK(std::filesystem::exists(test.directory + "/notes.txt"));
}

TEST_CASE("Store: gc of a directory that does not exist makes none", "[cache][evictor]") {
    Limited test;
    const EvictionReport report = Store(test.options(1)).gc(0);
    CHECK(report.status.ok());
    CHECK(report.entries == 0);
    CHECK_FALSE(std::filesystem::exists(test.directory));
    CHECK_FALSE(Store({.directory = ""}).gc(0).status.ok());
}

TEST_CASE("Store: an evictor at work is waited for by gc and left to itself by a publish",
          "[cache][evictor]") {
    Limited test;
    test.fill(10);
    const Path lock_path{test.directory, std::string(layout::kEvictorLock)};
    Options impatient = test.options(5 * test.entry_bytes());
    impatient.lock_wait = 20ms;
    const Store store(impatient);
    REQUIRE(store.lock(kKey).held());
    {
        const Lock other = acquire_lock(posix_file_system(), lock_path, 0600, 0ns);
        REQUIRE(other.held());
        const EvictionReport report = store.gc(std::nullopt);
        CHECK(report.busy);
        CHECK_FALSE(report.kept);
        CHECK(store.publish(key_of(100), kVersion, kEntry).ok());
        CHECK(test.entries() == 11);
        CHECK(test.warnings.count() == 0);  // whether the limit can be kept is not known
    }
    CHECK(store.gc(std::nullopt).entries == 6);
}

TEST_CASE("Store: eviction that fails anywhere fails no publish and breaks no entry", "[cache][evictor]") {
    const int error_number = GENERATE(EACCES, EIO, EROFS, EMFILE, ENOENT, ESTALE);
    Limited test;
    test.fill(4);
    const Store store(test.options(2 * test.entry_bytes()));
    for (std::size_t n = 0;; ++n) {
        test.fill(4);
        test.files.fail_once_at(n, error_number);
        test.files.reset_counts();
        const EvictionReport report = store.gc(std::nullopt);
        const bool reached = test.files.count_all() > n;
        test.files.heal();
        CHECK_FALSE(report.status.fatal());
        CHECK(store.verify().bad.empty());
        CHECK(test.entries() >= 2);
        if (!reached) {
            CHECK(n > 10);
            CHECK(test.entries() == 2);
            break;
        }
    }
}

TEST_CASE("Store: many evictors at once do not remove more than one would", "[cache][evictor][concurrency]") {
    Limited test;
    constexpr std::uint64_t kEntries = 60;
    const bool has_locks = GENERATE(true, false);
    if (!has_locks) test.files.fail_always(Operation::file_lock, ENOLCK);
    test.fill(kEntries);
    const std::uint64_t bytes = test.entry_bytes();
    const auto keep_half = [&] {
        const EvictionReport report = Store(test.options(kEntries / 2 * bytes)).gc(std::nullopt);
        return report.status.ok() && report.kept->entries == kEntries / 2;
    };
    std::vector<ChildProcess> processes;
    for (int i = 0; i < 4; ++i) processes.emplace_back([&] { return keep_half() ? 0 : 1; });
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&] { failures += keep_half() ? 0 : 1; });
    for (std::thread& thread : threads) thread.join();
    for (ChildProcess& process : processes) CHECK(process.wait() == 0);
    CHECK(failures == 0);
    CHECK(test.entries() == kEntries / 2);
    for (std::uint64_t i = 0; i < kEntries; ++i) CHECK(test.has(i) == (i >= kEntries / 2));
}

TEST_CASE("Store: publishers over the limit, many at once, keep it and lose nothing new",
          "[cache][evictor][concurrency]") {
    Limited test;
    test.fill(40);
    const std::uint64_t bytes = test.entry_bytes();
    std::vector<ChildProcess> processes;
    for (std::uint64_t process = 0; process < 4; ++process) {
        processes.emplace_back([&, process] {
            const Store store({.directory = test.directory, .max_bytes = 40 * bytes});
            for (std::uint64_t i = 0; i < 4; ++i) {
                if (!store.publish(key_of(1000 + 10 * process + i), kVersion, kEntry).ok()) return 1;
            }
            return 0;
        });
    }
    for (ChildProcess& process : processes) CHECK(process.wait() == 0);
    for (std::uint64_t process = 0; process < 4; ++process) {
        for (std::uint64_t i = 0; i < 4; ++i) CHECK(test.has(1000 + 10 * process + i));
    }
    CHECK(test.entries() >= 36);
    CHECK(test.entries() <= 40);
}

}  // namespace attnsmith::cache
