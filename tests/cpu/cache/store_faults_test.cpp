// The disk fails: at every operation in turn, and for good.

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>

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
using testing::kOtherKey;
using testing::kVersion;
using testing::load_newest;
using testing::Operation;
using testing::TemporaryDirectory;
using testing::Warnings;
using testing::write_text;

namespace {

constexpr int kFaults[] = {ENOSPC, EDQUOT, EROFS, EACCES, EIO, EMFILE, ENFILE, ESTALE, ENOENT, ENOMEM};

struct FaultyStore {
    TemporaryDirectory temporary;
    std::string directory = temporary / "cache";
    Warnings warnings;
    FaultyFileSystem files;
    Store store{{.directory = directory,
                 .file_system = &files,
                 .warn = warnings.callback(),
                 .lock_wait = std::chrono::milliseconds(5)}};
};

// Does `work` with a fault at its n-th file operation, for every n that it reaches; how many there were.
template <class Work>
std::size_t with_each_operation_failing(FaultyFileSystem& files, int error_number, Work work) {
    for (std::size_t n = 0;; ++n) {
        files.fail_once_at(n, error_number);
        files.reset_counts();
        work();
        const bool reached = files.count_all() > n;
        files.heal();
        if (!reached) return n;
    }
}

}  // namespace

TEST_CASE("Store: a publish that fails anywhere leaves a whole entry or none, and no staging file",
          "[cache][store][faults]") {
    for (const int error_number : kFaults) {
        INFO(error_number);
        FaultyStore test;
        const std::size_t operations = with_each_operation_failing(test.files, error_number, [&] {
            std::filesystem::remove_all(test.directory);
            const Status status = test.store.publish(kKey, kVersion, entry_of("payload"));
            test.files.heal();
            CHECK_FALSE(status.fatal());
            CHECK(count_files(test.directory + "/staging") == 0);
            const auto candidates = test.store.candidates(kKey);
            if (status.ok()) CHECK(candidates.size() == 1);
            if (!candidates.empty()) CHECK(load_newest(test.store, kKey) == entry_of("payload"));
            CHECK(test.store.publish(kKey, kVersion, entry_of("again")).ok());
            CHECK(load_newest(test.store, kKey) == entry_of("again"));
        });
        CHECK(operations >= 7);
        // One warning each tells of what cannot be read and of what cannot be written. What is gone, once, is
        // made anew.
        CHECK(test.warnings.count() <= 2);
        CHECK((test.warnings.count() == 0) == (error_number == ENOENT || error_number == ESTALE));
    }
}

TEST_CASE("Store: a publish whose staging file cannot even be removed for want of memory fails, no more",
          "[cache][store][faults]") {
    FaultyStore test;
    test.files.fault = [](Operation operation) {
        if (operation == Operation::remove) throw std::bad_alloc();
        return operation == Operation::file_write ? ENOSPC : 0;
    };
    const Status status = test.store.publish(kKey, kVersion, entry_of("payload"));
    CHECK(status.error_number == ENOSPC);
    test.files.heal();
    CHECK(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
}

TEST_CASE("Store: what is in the directory's place and cannot be used is told once",
          "[cache][store][faults]") {
    const TemporaryDirectory temporary;
    write_text(temporary / "cache", "a file");
    Warnings warnings;
    const Store store({.directory = temporary / "cache", .warn = warnings.callback()});
    CHECK(store.candidates(kKey).empty());
    CHECK(store.lock(kKey).state() == LockState::unavailable);
    CHECK(store.publish(kKey, kVersion, entry_of("payload")).error_number == ENOTDIR);
    CHECK(warnings.count() == 1);
}

TEST_CASE("Store: a lock file that cannot be opened is no word on what can be written",
          "[cache][store][faults]") {
    FaultyStore test;
    test.files.fail_always(Operation::open_lock_file, EACCES);
    CHECK(test.store.lock(kKey).state() == LockState::unavailable);
    CHECK(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    CHECK(test.warnings.messages().empty());
    test.files.fail_always(Operation::file_write, ENOSPC);
    CHECK_FALSE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    CHECK(test.warnings.count() == 1);
}

TEST_CASE("Store: a load that fails anywhere is a miss that destroys nothing", "[cache][store][faults]") {
    for (const int error_number : kFaults) {
        INFO(error_number);
        FaultyStore test;
        REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
        const std::size_t operations = with_each_operation_failing(test.files, error_number, [&] {
            for (const Candidate& candidate : test.store.candidates(kKey)) {
                const auto loaded = test.store.load(candidate);
                if (loaded) CHECK(*loaded == entry_of("payload"));
                CHECK_FALSE(loaded.status().fatal());
            }
        });
        CHECK(operations == 5);
        CHECK(load_newest(test.store, kKey) == entry_of("payload"));
        CHECK(test.warnings.count() <= 1);
    }
}

TEST_CASE("Store: a stale NFS handle is looked up once more", "[cache][store][faults]") {
    FaultyStore test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    const Candidate candidate = test.store.candidates(kKey).front();
    test.files.fail_once_at(2, ESTALE);
    CHECK(test.store.load(candidate).value() == entry_of("payload"));
    test.files.fail_always(Operation::file_read, ESTALE);
    CHECK(test.store.load(candidate).status().error_number == ESTALE);
}

TEST_CASE("Store: a quarantine that fails anywhere is still a miss", "[cache][store][faults]") {
    for (const int error_number : kFaults) {
        INFO(error_number);
        FaultyStore test;
        const std::string path = test.directory + "/" + layout::entry_path({kKey, kVersion});
        const std::size_t operations = with_each_operation_failing(test.files, error_number, [&] {
            testing::write_text(path, "broken");
            for (const Candidate& candidate : test.store.candidates(kKey)) {
                CHECK(test.store.load(candidate).status().recoverable());
            }
        });
        CHECK(operations >= 8);
    }
}

TEST_CASE("Store: a lock that fails anywhere lets the caller go on", "[cache][store][faults]") {
    for (const int error_number : kFaults) {
        INFO(error_number);
        FaultyStore test;
        const std::size_t operations = with_each_operation_failing(test.files, error_number, [&] {
            std::filesystem::remove_all(test.directory);
            const Lock lock = test.store.lock(kKey);
            const bool acquired =
                lock.state() == LockState::acquired || lock.state() == LockState::acquired_after_waiting;
            CHECK(lock.held() == acquired);
            CHECK(lock.held() == lock.status().ok());
        });
        CHECK(operations >= 5);
        CHECK(test.warnings.count() <= 2);  // of what cannot be read, and of what cannot be written
    }
}

TEST_CASE("Store: a full disk is told once, and what is there still hits", "[cache][store][faults]") {
    FaultyStore test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    const Operation failing = GENERATE(Operation::create, Operation::file_write, Operation::file_sync,
                                       Operation::file_close, Operation::rename);
    test.files.fail_always(failing, ENOSPC);
    for (int round = 0; round < 3; ++round) {
        const Status status = test.store.publish(kOtherKey, kVersion, entry_of("other"));
        CHECK(status.recoverable());
        CHECK(status.error_number == ENOSPC);
    }
    REQUIRE(test.warnings.count() == 1);
    CHECK(test.warnings.messages()[0].find("No space left on device") != std::string::npos);
    CHECK(count_files(test.directory + "/staging") == 0);
    CHECK(test.store.candidates(kOtherKey).empty());
    CHECK(load_newest(test.store, kKey) == entry_of("payload"));
}

TEST_CASE("Store: space that comes back is used again", "[cache][store][faults]") {
    FaultyStore test;
    test.files.fail_always(Operation::file_write, ENOSPC);
    CHECK(test.store.publish(kKey, kVersion, entry_of("payload")).recoverable());
    test.files.heal();
    CHECK(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
}

TEST_CASE("Store: short writes make whole entries", "[cache][store][faults]") {
    FaultyStore test;
    test.files.most_bytes_per_write = 7;
    test.files.most_bytes_per_read = 5;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    CHECK(load_newest(test.store, kKey) == entry_of("payload"));
}

TEST_CASE("Store: an entry whose directory could not be synced is there, and its publish says so",
          "[cache][store][faults]") {
    FaultyStore test;
    REQUIRE(test.store.publish(kOtherKey, kVersion, entry_of("makes the shard")).ok());
    test.files.fail_always(Operation::sync_directory, EIO);
    CHECK(test.store.publish(kKey, kVersion, entry_of("payload")).recoverable());
    CHECK(load_newest(test.store, kKey) == entry_of("payload"));
}

TEST_CASE("Store: a read-only mount is one warning for locks and publishes together",
          "[cache][store][faults]") {
    FaultyStore test;
    REQUIRE(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
    test.files.fault = [](Operation operation) {
        const bool writes = operation == Operation::create || operation == Operation::open_lock_file ||
                            operation == Operation::make_directory || operation == Operation::check_writable;
        return writes ? EROFS : 0;
    };
    CHECK(test.store.lock(kOtherKey).state() == LockState::unavailable);
    CHECK(test.store.publish(kOtherKey, kVersion, entry_of("other")).error_number == EROFS);
    CHECK(test.warnings.count() == 1);
    CHECK(load_newest(test.store, kKey) == entry_of("payload"));
    const Statistics statistics = test.store.stat();
    CHECK_FALSE(statistics.writable);
    CHECK(statistics.not_writable_because.find("Read-only file system") != std::string::npos);
    CHECK(statistics.entries == 1);
}

TEST_CASE("Store: a file system without locks is told once, and publishes go on", "[cache][store][faults]") {
    FaultyStore test;
    test.files.fail_always(Operation::file_lock, ENOLCK);
    CHECK(test.store.lock(kKey).state() == LockState::unavailable);
    CHECK(test.store.lock(kOtherKey).state() == LockState::unavailable);
    CHECK(test.warnings.count() == 1);
    CHECK(test.store.publish(kKey, kVersion, entry_of("payload")).ok());
}

TEST_CASE("Store: a lock that never comes is told once", "[cache][store][faults]") {
    FaultyStore test;
    const Lock held = test.store.lock(kKey);
    CHECK(test.store.lock(kKey).state() == LockState::timed_out);
    CHECK(test.store.lock(kKey).state() == LockState::timed_out);
    CHECK(test.warnings.count() == 1);
}

TEST_CASE("Store: a real directory without write permission serves hits and warns once",
          "[cache][store][faults]") {
    TemporaryDirectory temporary;
    const std::string directory = temporary / "cache";
    std::filesystem::create_directory(directory);
    ::chmod(temporary.path().c_str(), 0755);
    ::chmod(directory.c_str(), 0755);
    const mode_t old_mask = ::umask(0022);
    REQUIRE(Store({.directory = directory}).publish(kKey, kVersion, entry_of("payload")).ok());
    ::umask(old_mask);
    ::chmod(directory.c_str(), 0555);
    // Permissions do not bind root, so a child becomes nobody.
    ChildProcess reader([&] {
        constexpr uid_t kNobody = 65534;
        if (::geteuid() == 0 && ::setuid(kNobody) != 0) return 1;
        Warnings warnings;
        const Store store({.directory = directory, .warn = warnings.callback()});
        if (load_newest(store, kKey) != entry_of("payload")) return 2;
        if (store.lock(kOtherKey).state() != LockState::unavailable) return 3;
        if (store.publish(kOtherKey, kVersion, entry_of("other")).error_number != EACCES) return 4;
        if (store.stat().writable) return 5;
        return warnings.count() == 1 ? 0 : 6;
    });
    CHECK(reader.wait() == 0);
    ::chmod(directory.c_str(), 0755);
}

TEST_CASE("Store: a file where the directory should be is a warning and misses", "[cache][store][faults]") {
    TemporaryDirectory temporary;
    testing::write_text(temporary / "file", "not a directory");
    Warnings warnings;
    const Store store({.directory = temporary / "file", .warn = warnings.callback()});
    CHECK(store.publish(kKey, kVersion, entry_of("payload")).recoverable());
    CHECK(store.publish(kKey, kVersion, entry_of("payload")).recoverable());
    CHECK(warnings.count() == 1);
    CHECK_FALSE(store.stat().writable);
    CHECK(testing::read_text(temporary / "file") == "not a directory");
}

TEST_CASE("Store: a warning that throws does not get out of a publish", "[cache][store][faults]") {
    const Store store(
        {.directory = "", .warn = [](std::string_view) { throw std::runtime_error("from warn"); }});
    CHECK(store.publish(kKey, kVersion, entry_of("payload")).fatal());
}

}  // namespace attnsmith::cache
