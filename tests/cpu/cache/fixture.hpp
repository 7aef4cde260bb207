// What the cache's tests share: a temporary directory, small entries, child processes.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cache/store/store.hpp"

namespace attnsmith::cache::testing {

// Removed, with all that is in it, at the end.
class TemporaryDirectory {
  public:
    TemporaryDirectory() {
        ::umask(022);  // a cache that the group may write to is not trusted
        std::string name = (std::filesystem::temp_directory_path() / "attnsmith-cache-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
        path_ = name;
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
    TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
    ~TemporaryDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }

    const std::filesystem::path& path() const { return path_; }
    std::string operator/(std::string_view name) const { return (path_ / name).string(); }

  private:
    std::filesystem::path path_;
};

// Keeps the warnings; thread-safe.
class Warnings {
  public:
    WarnCallback callback() {
        return [this](std::string_view message) {
            const std::lock_guard guard(mutex_);
            messages_.emplace_back(message);
        };
    }
    std::vector<std::string> messages() const {
        const std::lock_guard guard(mutex_);
        return messages_;
    }
    std::size_t count() const { return messages().size(); }

  private:
    mutable std::mutex mutex_;
    std::vector<std::string> messages_;
};

inline const Digest kKey(0x0123456789abcdef, 0xfedcba9876543210);
inline const Digest kOtherKey(0x01aaaaaaaaaaaaaa, 0xbbbbbbbbbbbbbbbb);  // of the same shard as kKey
inline const Version kVersion{13, 0, 88};

inline std::vector<std::byte> bytes_of(std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
}

inline Entry entry_of(std::string_view payload) {
    return {.metadata = R"({"symbol":"attention"})", .payload = bytes_of(payload)};
}

inline std::string read_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_text(const std::string& path, std::string_view text) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// Changes one byte and nothing else of the file.
inline void overwrite(const std::string& path, std::size_t at, char byte) {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(at)).put(byte);
    if (!file.flush()) throw std::runtime_error("cannot overwrite " + path);
}

// How many files there are below a directory, at any depth.
inline std::size_t count_files(const std::string& directory) {
    if (!std::filesystem::exists(directory)) return 0;
    std::size_t files = 0;
    for (const auto& found : std::filesystem::recursive_directory_iterator(directory)) {
        files += found.is_directory() ? 0 : 1;
    }
    return files;
}

inline Entry load_newest(const Store& store, const Digest& key) {
    const auto candidates = store.candidates(key);
    if (candidates.empty()) throw std::runtime_error("no candidate");
    Result<Entry> entry = store.load(candidates.front());
    if (!entry) throw std::runtime_error(entry.status().to_string());
    return std::move(entry).value();
}

// GCC 12's AddressSanitizer does not hold its allocator's locks over fork: a child forked while other threads
// allocate may hang in its own first allocation. What needs such children is left to the other builds.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kMayForkBesideBusyThreads = false;
#else
inline constexpr bool kMayForkBesideBusyThreads = true;
#endif

// Runs `work` in a forked child; what it returns is the exit status. Killed at the end if it still runs.
class ChildProcess {
  public:
    explicit ChildProcess(const std::function<int()>& work) : process_(::fork()) {
        if (process_ < 0) throw std::runtime_error("fork failed");
        if (process_ == 0) {
            // No assertion may run in a child, and no exit handler of the test program.
            try {
                ::_exit(work());
            } catch (...) {
                ::_exit(kThrew);
            }
        }
    }
    ChildProcess(ChildProcess&& other) noexcept : process_(std::exchange(other.process_, -1)) {}
    ChildProcess& operator=(ChildProcess&&) = delete;
    ~ChildProcess() {
        if (process_ > 0) kill();
    }

    // The exit status, or minus the signal that ended it.
    int wait() {
        int status = 0;
        ::waitpid(std::exchange(process_, -1), &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }

    int kill() {
        ::kill(process_, SIGKILL);
        return wait();
    }

    static constexpr int kThrew = 99;

  private:
    pid_t process_;
};

// How long to wait before each kill of children that do one thing again and again, so that a kill hits any
// part of it. How long a child takes to have one there depends on the machine, its disk and sanitizers: a
// child that is killed too early for it gives the next ones more time.
class KillTimes {
  public:
    explicit KillTimes(unsigned seed) : random_(seed) {}

    void wait() {
        last_ = std::uniform_real_distribution(0.0, longest_)(random_);
        std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(last_));
    }
    void was_too_early() { longest_ = std::max(longest_, std::min(1.5 * last_, 1e6)); }

  private:
    std::mt19937 random_;
    double longest_ = 4000, last_ = 0;  // microseconds
};

// One byte from one process to another.
class Signal {
  public:
    Signal() {
        if (::pipe(ends_) != 0) throw std::runtime_error("pipe failed");
    }
    Signal(const Signal&) = delete;
    Signal& operator=(const Signal&) = delete;
    ~Signal() {
        ::close(ends_[0]);
        ::close(ends_[1]);
    }

    void send() const {
        if (::write(ends_[1], "!", 1) != 1) throw std::runtime_error("write to pipe failed");
    }
    void wait() const {
        char byte = 0;
        if (::read(ends_[0], &byte, 1) != 1) throw std::runtime_error("read from pipe failed");
    }

  private:
    int ends_[2] = {-1, -1};
};

}  // namespace attnsmith::cache::testing
