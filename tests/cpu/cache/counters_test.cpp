// What is counted over all processes.

#include "cache/entries/counters.hpp"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cache/entries/layout.hpp"
#include "cache/store/store.hpp"
#include "faulty_file_system.hpp"
#include "fixture.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {

using testing::ChildProcess;
using testing::count_files;
using testing::entry_of;
using testing::FaultyFileSystem;
using testing::kKey;
using testing::kVersion;
using testing::load_newest;
using testing::Operation;
using testing::TemporaryDirectory;

namespace {

struct Counted {
    TemporaryDirectory temporary;
    std::string directory = temporary / "cache";
    FaultyFileSystem files;

    Counted() { std::filesystem::create_directory(directory); }
    CounterTotals totals() { return read_counters(posix_file_system(), directory); }
    std::string own_file() const {
        return directory + "/" + layout::counters_path(static_cast<unsigned>(::getpid()) % 16);
    }
};

CounterTotals some_totals() {
    CounterTotals totals;
    totals.since = 1'700'000'000;
    for (std::size_t i = 0; i < kEvents; ++i) totals.counts[i] = 1000 * i + 7;
    return totals;
}

}  // namespace

TEST_CASE("Counters: what several files count is added up, since the first of them", "[cache][counters]") {
    Counted it;
    std::filesystem::create_directory(it.directory + "/" + std::string(layout::kCountersDirectory));
    for (const auto& [slot, since] : {std::pair{1U, 200}, {2U, 100}, {7U, 300}}) {
        CounterTotals totals = some_totals();
        totals.since = since;
        const CounterRecord record = encode_counters(totals);
        std::ofstream(it.directory + "/" + layout::counters_path(slot), std::ios::binary)
            .write(reinterpret_cast<const char*>(record.data()), static_cast<std::streamsize>(record.size()));
    }
    CHECK(it.totals().since == 100);
    for (std::size_t i = 0; i < kEvents; ++i) CHECK(it.totals().counts[i] == 3 * some_totals().counts[i]);
}

TEST_CASE("Counters: a record is read as it was written, and no other bytes are one", "[cache][counters]") {
    const CounterTotals totals = some_totals();
    const CounterRecord record = encode_counters(totals);
    const auto decoded = decode_counters(record);
    REQUIRE(decoded);
    CHECK(decoded->counts == totals.counts);
    CHECK(decoded->since == totals.since);
    std::size_t refused = 0;
    for (std::size_t at = 0; at < record.size(); ++at) {
        CounterRecord flipped = record;
        flipped[at] ^= std::byte{0x10};
        refused += decode_counters(flipped) ? 0 : 1;
    }
    CHECK(refused == record.size());
    for (std::size_t size = 0; size < record.size(); ++size) {
        CHECK_FALSE(decode_counters(std::span(record).first(size)));
    }
}

TEST_CASE("Counters: the record's bytes are those of FORMAT.md", "[cache][counters]") {
    const CounterRecord record = encode_counters(some_totals());
    const auto byte = [&](std::size_t at) { return std::to_integer<int>(record[at]); };
    CHECK(byte(0) == 0x89);
    CHECK(byte(4) == 'C');
    CHECK(byte(8) == 1);
    CHECK(byte(24) == 7);                // hits
    CHECK(byte(32) == (1007 & 0xff));    // misses
    CHECK(byte(24 + 8 * kEvents) == 0);  // not used yet
    const Digest digest = digest_of(std::span<const std::byte>(record).first(240));
    CHECK(byte(240) == static_cast<int>(digest.high() >> 56));
    CHECK(byte(255) == static_cast<int>(digest.low() & 0xff));
}

TEST_CASE("Counters: counting touches no file before a flush is due", "[cache][counters]") {
    Counted test;
    Counters counters(test.files, test.directory);
    for (int i = 0; i < 255; ++i) counters.add(Event::hit, 1);
    CHECK(test.files.count_all() == 0);
    counters.add(Event::bytes_read, 1000);
    CHECK(counters.is_due());  // 256 events
    counters.flush(0700);
    CHECK_FALSE(counters.is_due());
    CHECK(test.totals()[Event::hit] == 255);
    CHECK(test.totals()[Event::bytes_read] == 1000);
    CHECK(test.totals().since > 1'700'000'000);

    counters.add(Event::hit, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    CHECK(counters.is_due());
    counters.flush(0700);
    CHECK(test.totals()[Event::hit] == 256);
    CHECK(count_files(test.directory) == 1);
}

TEST_CASE("Counters: nothing is made where there is no cache directory", "[cache][counters]") {
    Counted test;
    std::filesystem::remove(test.directory);
    Counters counters(test.files, test.directory);
    counters.add(Event::miss, 1);
    counters.flush(0700);
    CHECK_FALSE(std::filesystem::exists(test.directory));
}

TEST_CASE("Counters: a broken file starts at zero", "[cache][counters]") {
    Counted test;
    Counters counters(test.files, test.directory);
    counters.add(Event::hit, 5);
    counters.flush(0700);
    REQUIRE(test.totals()[Event::hit] == 5);
    const std::string text = testing::read_text(test.own_file());
    REQUIRE(text.size() == kCounterRecordBytes);
    testing::write_text(test.own_file(), text.substr(0, 100));
    CHECK(test.totals()[Event::hit] == 0);
    counters.add(Event::hit, 2);
    counters.flush(0700);
    CHECK(test.totals()[Event::hit] == 2);
}

TEST_CASE("Counters: what cannot be written is kept", "[cache][counters]") {
    Counted test;
    const Operation failing =
        GENERATE(Operation::open_lock_file, Operation::file_lock, Operation::file_write_at);
    Counters counters(test.files, test.directory);
    counters.add(Event::hit, 5);
    test.files.fail_always(failing, ENOSPC);
    counters.flush(0700);
    CHECK(test.totals()[Event::hit] == 0);
    test.files.heal();
    counters.flush(0700);  // they are due without another event
    CHECK(test.totals()[Event::hit] == 5);
    counters.add(Event::hit, 1);
    counters.flush(0700);
    CHECK(test.totals()[Event::hit] == 6);
}

TEST_CASE("Counters: a file that somebody holds is left for the next", "[cache][counters]") {
    Counted test;
    Counters counters(test.files, test.directory);
    counters.add(Event::hit, 1);
    counters.flush(0700);
    const auto held = posix_file_system().open_lock_file(
        {test.directory, layout::counters_path(static_cast<unsigned>(::getpid()) % 16)}, 0600);
    REQUIRE(held);
    REQUIRE((*held)->try_lock().ok());
    counters.add(Event::hit, 1);
    counters.flush(0700);
    CHECK(count_files(test.directory) == 2);
    CHECK(test.totals()[Event::hit] == 2);
}

TEST_CASE("Counters: nothing is added to a file that was removed meanwhile", "[cache][counters]") {
    Counted test;
    Counters counters(test.files, test.directory);
    counters.add(Event::hit, 1);
    counters.flush(0700);
    counters.add(Event::hit, 2);
    test.files.fault = [&](Operation operation) {
        if (operation == Operation::file_lock) std::filesystem::remove(test.own_file());
        return 0;
    };
    counters.flush(0700);
    test.files.heal();
    CHECK(test.totals()[Event::hit] == 2);
}

TEST_CASE("Counters: a forked child does not count what its parent counted", "[cache][counters]") {
    Counted test;
    Counters counters(test.files, test.directory);
    counters.add(Event::hit, 100);
    ChildProcess child([&] {
        counters.add(Event::hit, 1);
        counters.flush(0700);
        return 0;
    });
    CHECK(child.wait() == 0);
    CHECK(test.totals()[Event::hit] == 1);
    counters.flush(0700);
    CHECK(test.totals()[Event::hit] == 101);
}

TEST_CASE("Counters: nothing is lost between threads and processes", "[cache][counters][concurrency]") {
    Counted test;
    constexpr int kProcesses = 8, kThreads = 4, kCounts = 2000;
    std::vector<ChildProcess> processes;
    for (int process = 0; process < kProcesses; ++process) {
        processes.emplace_back([&] {
            const Store store({.directory = test.directory});
            std::vector<std::thread> threads;
            for (int thread = 0; thread < kThreads; ++thread) {
                threads.emplace_back([&] {
                    for (int i = 0; i < kCounts; ++i) store.count(Event::hit);
                });
            }
            for (std::thread& thread : threads) thread.join();
            // A slot may be taken just then; what is pending goes with the next flush.
            for (int i = 0; i < 100; ++i) static_cast<void>(store.stat());
            return 0;
        });
    }
    for (ChildProcess& process : processes) CHECK(process.wait() == 0);
    CHECK(test.totals()[Event::hit] == kProcesses * kThreads * kCounts);
}

TEST_CASE("Store: stat tells of quarantines and bytes of all stores", "[cache][counters]") {
    Counted test;
    std::uint64_t bytes = 0;
    {
        const Store store({.directory = test.directory});
        REQUIRE(store.publish(kKey, kVersion, entry_of("payload")).ok());
        bytes = std::filesystem::file_size(store.candidates(kKey).front().path);
        CHECK(load_newest(store, kKey) == entry_of("payload"));
        testing::write_text(store.candidates(kKey).front().path, "broken");
        CHECK_FALSE(store.load(store.candidates(kKey).front()));
    }
    const Store store({.directory = test.directory});
    const CounterTotals counters = store.stat().counters;
    CHECK(counters[Event::quarantine] == 1);
    CHECK(counters[Event::bytes_published] == bytes);
    CHECK(counters[Event::bytes_read] == bytes);
    CHECK(store.clear().status.ok());
    CHECK(store.stat().counters.since == 0);
}

}  // namespace attnsmith::cache
