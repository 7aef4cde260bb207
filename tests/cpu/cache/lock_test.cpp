#include "cache/files/lock.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <thread>
#include <utility>

#include "cache/files/posix_file.hpp"
#include "faulty_file_system.hpp"
#include "fixture.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {

using namespace std::chrono_literals;
using testing::ChildProcess;
using testing::FaultyFileSystem;
using testing::Operation;
using testing::Signal;
using testing::TemporaryDirectory;

namespace {

// Only ever used up where a test fails.
constexpr auto kLong = 60s;
constexpr auto kShort = 15ms;

struct LockPlace {
    TemporaryDirectory directory;
    Path path{directory.path().string(), "lock"};

    Lock acquire(std::chrono::nanoseconds limit) const {
        return acquire_lock(posix_file_system(), path, 0600, limit);
    }
};

int exit_code(bool good) { return good ? 0 : 1; }

}  // namespace

TEST_CASE("Lock: is had at once where nobody holds it", "[cache][lock]") {
    const LockPlace place;
    for (int round = 0; round < 3; ++round) {
        const Lock lock = place.acquire(0ns);
        CHECK(lock.state() == LockState::acquired);
        CHECK(lock.held());
        CHECK(lock.status().ok());
    }
}

TEST_CASE("Lock: a leftover lock file blocks nobody", "[cache][lock]") {
    const LockPlace place;
    testing::write_text(place.path.full(), "left by a process that died");
    CHECK(place.acquire(0ns).state() == LockState::acquired);
}

TEST_CASE("Lock: excludes another holder in the same process until released", "[cache][lock]") {
    const LockPlace place;
    Lock first = place.acquire(0ns);
    const Lock second = place.acquire(kShort);
    CHECK(second.state() == LockState::timed_out);
    CHECK_FALSE(second.held());
    CHECK(second.waited() >= kShort);
    CHECK(second.status().recoverable());
    first.release();
    CHECK_FALSE(first.held());
    CHECK(place.acquire(0ns).state() == LockState::acquired);
}

TEST_CASE("Lock: moving it moves the hold", "[cache][lock]") {
    const LockPlace place;
    std::optional<Lock> first = place.acquire(0ns);
    Lock second = std::move(*first);
    first.reset();
    CHECK(second.held());
    CHECK(place.acquire(0ns).state() == LockState::timed_out);
    second = place.acquire(0ns);
    CHECK_FALSE(second.held());
    CHECK(place.acquire(0ns).held());
}

TEST_CASE("Lock: a waiter gets it after the holder and is told so", "[cache][lock]") {
    const LockPlace place;
    std::optional<Lock> held = place.acquire(0ns);
    std::atomic<bool> released{false};
    std::atomic<bool> came_too_early{false};
    std::optional<LockState> state;
    std::thread waiter([&] {
        const Lock lock = place.acquire(kLong);
        came_too_early = !released;
        state = lock.state();
    });
    std::this_thread::sleep_for(20ms);
    released = true;
    held.reset();
    waiter.join();
    CHECK_FALSE(came_too_early);
    // On a machine so slow that the waiter started after the release it did not wait.
    CHECK((state == LockState::acquired_after_waiting || state == LockState::acquired));
}

TEST_CASE("Lock: threads hold it one at a time", "[cache][lock]") {
    const LockPlace place;
    std::atomic<int> inside{0};
    std::atomic<int> overlaps{0};
    int unguarded = 0;  // a race here is what ThreadSanitizer would show
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
        threads.emplace_back([&] {
            for (int round = 0; round < 5; ++round) {
                const Lock lock = place.acquire(kLong);
                if (!lock.held() || inside.fetch_add(1) != 0) ++overlaps;
                ++unguarded;
                --inside;
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(overlaps == 0);
    CHECK(unguarded == 40);
}

TEST_CASE("Lock: another process waits for it", "[cache][lock]") {
    const LockPlace place;
    const Lock lock = place.acquire(0ns);
    ChildProcess other([&] { return exit_code(place.acquire(kShort).state() == LockState::timed_out); });
    CHECK(other.wait() == 0);
}

TEST_CASE("Lock: is released when its holder is killed", "[cache][lock]") {
    const LockPlace place;
    const Signal holds;
    ChildProcess holder([&] {
        const Lock lock = place.acquire(kLong);
        holds.send();
        ::pause();
        return exit_code(lock.held());
    });
    holds.wait();
    CHECK(place.acquire(kShort).state() == LockState::timed_out);
    CHECK(holder.kill() == -SIGKILL);
    CHECK(place.acquire(kLong).held());
}

TEST_CASE("Lock: a forked child's copy does not outlive the holder that is killed", "[cache][lock]") {
    const LockPlace place;
    const Signal holds;
    const Signal done;
    ChildProcess holder([&] {
        const Lock lock = place.acquire(kLong);
        ChildProcess grandchild([&] {
            holds.send();
            done.wait();
            return 0;
        });
        return grandchild.wait();
    });
    holds.wait();
    CHECK(place.acquire(kShort).state() == LockState::timed_out);
    holder.kill();
    // The grandchild lives on.
    CHECK(place.acquire(kLong).held());
    done.send();
}

TEST_CASE("Lock: a file that was opened while the process forked is not the one that is locked",
          "[cache][lock][fork]") {
    const TemporaryDirectory temporary;
    const std::string path = temporary / "key.lock";
    int opened = 0;
    std::optional<ChildProcess> child;
    int to_child[2];
    REQUIRE(::pipe(to_child) == 0);
    const auto open = [&]() -> Result<Descriptor> {
        Descriptor descriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
        // Its copy of the descriptor stays open as long as it lives.
        if (++opened == 1) child.emplace([&] { return static_cast<int>(::read(to_child[0], &opened, 1)); });
        return descriptor;
    };
    auto file = open_posix_lock_file(path, open);
    REQUIRE(file.ok());
    CHECK(opened == 2);
    REQUIRE((*file)->try_lock().ok());
    *file = nullptr;
    auto again = posix_file_system().open_lock_file({temporary.path().string(), "key.lock"}, 0600);
    REQUIRE(again.ok());
    CHECK((*again)->try_lock().ok());
    REQUIRE(::write(to_child[1], "", 1) == 1);
    CHECK(child->wait() == 1);
    ::close(to_child[0]);
    ::close(to_child[1]);
}

TEST_CASE("Lock: a forked child that destroys its copy leaves the holder's lock alone", "[cache][lock]") {
    const LockPlace place;
    Lock lock = place.acquire(0ns);
    ChildProcess child([&] {
        lock.release();
        return 0;
    });
    CHECK(child.wait() == 0);
    CHECK(place.acquire(0ns).state() == LockState::timed_out);
    lock.release();
    CHECK(place.acquire(0ns).held());
}

TEST_CASE("Lock: a forked child can take locks of its own", "[cache][lock]") {
    const LockPlace place;
    Lock lock = place.acquire(0ns);
    const Signal refused;
    const Signal released;
    ChildProcess child([&] {
        lock.release();
        if (place.acquire(0ns).held()) return 1;
        refused.send();
        released.wait();
        return place.acquire(kLong).held() ? 0 : 2;
    });
    refused.wait();
    lock.release();
    released.send();
    CHECK(child.wait() == 0);
}

TEST_CASE("Lock: of a file that was removed meanwhile is not taken", "[cache][lock]") {
    const LockPlace place;
    std::optional<Lock> remover = place.acquire(0ns);
    std::optional<Lock> late;
    std::atomic<bool> holds{false};
    std::thread waiter([&] {
        late = place.acquire(kLong);
        holds = true;
    });
    std::this_thread::sleep_for(20ms);
    CHECK_FALSE(holds);
    REQUIRE(posix_file_system().remove_file(place.path).ok());
    remover.reset();
    waiter.join();
    REQUIRE(late->held());
    // Newcomers open the new file, and there the waiter's lock must be.
    CHECK(place.acquire(0ns).state() == LockState::timed_out);
}

TEST_CASE("Lock: of a file that was removed and made anew meanwhile the new one's is taken",
          "[cache][lock]") {
    const LockPlace place;
    FaultyFileSystem files;
    bool replaced = false;
    files.fault = [&](Operation operation) {
        if (operation != Operation::file_lock || std::exchange(replaced, true)) return 0;
        REQUIRE(posix_file_system().remove_file(place.path).ok());
        REQUIRE(posix_file_system().open_lock_file(place.path, 0600).ok());
        return 0;
    };
    const Lock lock = acquire_lock(files, place.path, 0600, kLong);
    REQUIRE(lock.held());
    CHECK(replaced);
    CHECK(place.acquire(0ns).state() == LockState::timed_out);
}

TEST_CASE("Lock: of a file that a stale handle says is gone is not taken", "[cache][lock]") {
    const LockPlace place;
    const Operation failing = GENERATE(Operation::file_stat, Operation::stat, Operation::file_lock);
    FaultyFileSystem files;
    bool failed = false;
    files.fault = [&](Operation operation) {
        return operation == failing && !std::exchange(failed, true) ? ESTALE : 0;
    };
    const Lock lock = acquire_lock(files, place.path, 0600, kLong);
    CHECK(lock.held());
    CHECK(files.count(Operation::open_lock_file) == 2);
}

TEST_CASE("Lock: a directory that is missing is made, and waiting goes on by the same clock",
          "[cache][lock]") {
    const LockPlace place;
    const Path path{place.directory.path().string(), "locks/lock"};
    FaultyFileSystem files;
    const MakeDirectory make = maker_of_parent(files, path, 0700);
    {
        const Lock lock = acquire_lock(files, path, 0600, 0ns, make);
        CHECK(lock.held());
        CHECK(std::filesystem::is_directory(place.directory / "locks"));
    }
    const auto start = std::chrono::steady_clock::now();
    bool removed = false;
    files.fault = [&](Operation operation) {
        if (operation != Operation::file_lock) return 0;
        if (removed || std::chrono::steady_clock::now() - start < 300ms) return EWOULDBLOCK;
        removed = std::filesystem::remove_all(place.directory / "locks") > 0;
        return 0;
    };
    const Lock lock = acquire_lock(files, path, 0600, 400ms, make);
    CHECK(lock.state() == LockState::timed_out);
    CHECK(removed);
    CHECK(std::filesystem::is_directory(place.directory / "locks"));
    CHECK(std::chrono::steady_clock::now() - start < 650ms);
}

TEST_CASE("Lock: says why its directory cannot be made", "[cache][lock]") {
    const LockPlace place;
    const Lock lock = acquire_lock(posix_file_system(), {place.directory / "missing", "locks/lock"}, 0600,
                                   0ns, [] { return Status::recoverable_error(EROFS, "locks", "no"); });
    CHECK(lock.state() == LockState::unavailable);
    CHECK(lock.status().error_number == EROFS);
}

TEST_CASE("Lock: is unavailable, not fatal, where it cannot be had", "[cache][lock]") {
    const LockPlace place;
    FaultyFileSystem files;
    for (const int error_number : {ENOLCK, ENOSYS, EOPNOTSUPP, EIO}) {
        files.fail_always(Operation::file_lock, error_number);
        const Lock lock = acquire_lock(files, place.path, 0600, kLong);
        CHECK(lock.state() == LockState::unavailable);
        CHECK_FALSE(lock.held());
        CHECK(lock.status().error_number == error_number);
    }
    const Lock lock = acquire_lock(posix_file_system(), {place.directory / "missing", "lock"}, 0600, kLong);
    CHECK(lock.state() == LockState::unavailable);
    CHECK(lock.status().error_number == ENOENT);
}

TEST_CASE("Lock: a file system that always says held costs the limit and no more", "[cache][lock]") {
    const LockPlace place;
    FaultyFileSystem files;
    files.fail_always(Operation::file_lock, EWOULDBLOCK);
    const Lock lock = acquire_lock(files, place.path, 0600, kShort);
    CHECK(lock.state() == LockState::timed_out);
    CHECK(lock.waited() >= kShort);
    CHECK(lock.waited() < kLong);
}

}  // namespace attnsmith::cache
