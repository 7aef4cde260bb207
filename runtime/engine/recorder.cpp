#include "engine/recorder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <exception>
#include <system_error>
#include <thread>

#include "cache/files/size_signal.hpp"
#include "problem/request/recorded.hpp"

namespace attnsmith::engine {
namespace {

constexpr mode_t kMode = 0666;  // less the process's umask
constexpr std::size_t kMostLines = 4096;
constexpr int kLockAttempts = 50;
constexpr std::chrono::milliseconds kLockPause{1};

class Descriptor {
  public:
    // Not to wait for the reader of a pipe, which is refused below.
    explicit Descriptor(const std::string& file)
        : number_(
              ::open(file.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, kMode)) {}
    ~Descriptor() {
        if (number_ >= 0) ::close(number_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    int number() const { return number_; }

  private:
    const int number_;
};

std::string last_error() { return std::generic_category().message(errno); }

// One process at a time looks at the last line and writes its own: a line that is just being written is seen
// in part, and would be taken for a torn one. Nobody is waited for long, since whoever holds the lock may be
// stopped, and some file systems have no locks. What comes of going on without it is an empty line, which
// readers pass over. Closing the file lets go of the lock.
void lock_for_a_line(int file) {
    for (int attempt = 0; attempt < kLockAttempts; ++attempt) {
        if (::flock(file, LOCK_EX | LOCK_NB) == 0 || (errno != EWOULDBLOCK && errno != EINTR)) return;
        std::this_thread::sleep_for(kLockPause);
    }
}

// Whether somebody was killed in the last line.
bool ends_in_torn_line(int file, const struct stat& info) {
    char last = '\n';
    return info.st_size > 0 && ::pread(file, &last, 1, info.st_size - 1) == 1 && last != '\n';
}

// Empty, or what went wrong. What a full disk has cut off stands on a line of its own, before the whole one.
std::string append(int file, const std::string& line, bool after_torn) {
    const cache::SizeSignalHeld held;
    std::string text = after_torn ? "\n" + line : line;
    for (int attempts = 3; attempts > 0;) {
        const ssize_t count = ::write(file, text.data(), text.size());
        if (count == static_cast<ssize_t>(text.size())) return {};
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return last_error();
        text = "\n" + line;
        --attempts;
    }
    return "it takes no whole line";
}

std::string append_line(const std::string& file, const std::string& line) {
    const Descriptor descriptor(file);
    if (descriptor.number() < 0) return last_error();
    struct stat info {};
    if (::fstat(descriptor.number(), &info) != 0) return last_error();
    if (!S_ISREG(info.st_mode)) return "it is no regular file";
    lock_for_a_line(descriptor.number());
    if (::fstat(descriptor.number(), &info) != 0) return last_error();
    return append(descriptor.number(), line, ends_in_torn_line(descriptor.number(), info));
}

}  // namespace

void Recorder::record(const problem::Problem& problem) noexcept {
    if (file_.empty()) return;
    try {
        record_line(problem::recorded_line(problem));
    } catch (const std::exception& error) {
        tell(error.what());
    }
}

Recorder::~Recorder() {
    if (file_.empty()) return;
    try {
        Written& written = written_.get();
        const std::lock_guard lock(written.mutex);
        write_waiting(written);
    } catch (const std::exception& error) {
        tell(error.what());
    }
}

void Recorder::record_line(std::string line) {
    Written& written = written_.get();
    const std::lock_guard lock(written.mutex);
    if (!written.lines.contains(line) && written.waiting.size() < kMostLines) {
        if (written.lines.size() >= kMostLines)
            written.lines.clear();  // readers drop what stands there twice
        written.waiting.push_back(line);
        written.lines.insert(std::move(line));
    }
    write_waiting(written);
}

void Recorder::write_waiting(Written& written) const {
    for (; !written.waiting.empty(); written.waiting.pop_front()) {
        const std::string trouble = append_line(file_, written.waiting.front());
        if (!trouble.empty()) return tell(trouble);
    }
}

void Recorder::tell(std::string_view trouble) const {
    if (told_.exchange(true)) return;
    try {
        (*log_)(LogLevel::warn, "what is asked for is not recorded in {}: {}", file_, trouble);
    } catch (const std::exception&) {
        // No memory, say: nothing depends on it.
    }
}

}  // namespace attnsmith::engine
