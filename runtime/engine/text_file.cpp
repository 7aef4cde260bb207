#include "engine/text_file.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

namespace attnsmith::engine {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kWriterWait{5};

class NoWriter : public std::error_category {
  public:
    const char* name() const noexcept override { return "attnsmith.no_writer"; }
    std::string message(int) const override {
        return "it is a FIFO that nobody opened for writing within " + std::to_string(kWriterWait.count()) +
               " seconds";
    }
};

const NoWriter no_writer;

std::error_code error_of_errno() { return {errno, std::generic_category()}; }

short wait_for_data(int descriptor, int milliseconds) {
    pollfd file{.fd = descriptor, .events = POLLIN, .revents = 0};
    return ::poll(&file, 1, milliseconds) > 0 ? file.revents : short{0};
}

// A FIFO reads as empty until its writer comes, but only once the writer has left does poll() say so.
bool waits_for_writer(int descriptor) {
    struct stat info {};
    return ::fstat(descriptor, &info) == 0 && S_ISFIFO(info.st_mode) && wait_for_data(descriptor, 0) == 0;
}

// REQUIRES: `text` is as long as may be read.
std::error_code read_into(int descriptor, std::string& text) {
    constexpr int kLookAgain = 100, kForEver = -1;  // milliseconds
    const auto deadline = Clock::now() + kWriterWait;
    std::size_t size = 0;
    while (size < text.size()) {
        const ssize_t count = ::read(descriptor, text.data() + size, text.size() - size);
        if (count > 0) {
            size += static_cast<std::size_t>(count);
        } else if (count < 0 && errno == EAGAIN) {
            wait_for_data(descriptor, kForEver);
        } else if (count < 0 && errno != EINTR) {
            return error_of_errno();
        } else if (count == 0) {
            if (size > 0 || !waits_for_writer(descriptor)) break;
            if (Clock::now() >= deadline) return {1, no_writer};
            wait_for_data(descriptor, kLookAgain);
        }
    }
    text.resize(size);
    return {};
}

}  // namespace

std::error_code read_text(const std::string& path, std::string& text, std::size_t most_bytes) {
    text.assign(most_bytes, '\0');  // before there is a file that would have to be closed
    // open() itself would wait for ever for a FIFO's writer.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (descriptor < 0) return error_of_errno();
    const std::error_code error = read_into(descriptor, text);
    ::close(descriptor);
    return error;
}

std::error_code read_text(int descriptor, std::string& text, std::size_t most_bytes) {
    text.assign(most_bytes, '\0');
    return read_into(descriptor, text);
}

}  // namespace attnsmith::engine
