#include "cli/files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "cli/command.hpp"

namespace attnsmith::cli {
namespace {

constexpr std::size_t kMostBytes = std::size_t{2} << 20;  // twice what the JSON parser takes

class Descriptor {
  public:
    explicit Descriptor(int number) : number_(number) {}
    ~Descriptor() {
        if (number_ > STDERR_FILENO) ::close(number_);
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int number() const { return number_; }

  private:
    int number_;
};

[[noreturn]] void refuse(const std::string& path, const char* why) {
    throw BadUsage(fmt::format("{}: cannot be read: {}", path.empty() ? "\"\"" : path, why));
}

bool is_directory(const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::string folder_of(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    return slash == path.npos ? "." : path.substr(0, slash + 1);
}

[[noreturn]] void fail_to_write(const std::string& path) {
    throw Error(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

// Whether it could; else errno says why.
bool write_all(int descriptor, std::string_view text) {
    while (!text.empty()) {
        const ssize_t count = ::write(descriptor, text.data(), text.size());
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return false;
        text.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
}

std::string read_all(int descriptor, const std::string& path) {
    std::string text(kMostBytes, '\0');
    std::size_t size = 0;
    while (size < text.size()) {
        const ssize_t count = ::read(descriptor, text.data() + size, text.size() - size);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) refuse(path, std::strerror(errno));
        if (count == 0) break;
        size += static_cast<std::size_t>(count);
    }
    text.resize(size);
    return text;
}

}  // namespace

std::string read_text(const std::string& path) {
    if (path == "-") return read_all(STDIN_FILENO, "standard input");
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.number() < 0) refuse(path, std::strerror(errno));
    return read_all(file.number(), path);
}

void require_writable(const std::string& path) {
    const char* why = path.empty()                                   ? "it is no name"
                      : is_directory(path)                           ? "it is a directory"
                      : ::access(folder_of(path).c_str(), W_OK) == 0 ? nullptr
                                                                     : std::strerror(errno);
    if (why != nullptr)
        throw BadUsage(fmt::format("{}: cannot be written: {}", path.empty() ? "\"\"" : path, why));
}

void write_text(const std::string& path, const std::string& text) {
    std::string staged = path + ".XXXXXX";
    const Descriptor file(::mkstemp(staged.data()));
    if (file.number() < 0) fail_to_write(path);
    const mode_t mask = ::umask(0);
    ::umask(mask);
    const bool written = write_all(file.number(), text) && ::fchmod(file.number(), 0666 & ~mask) == 0 &&
                         ::fsync(file.number()) == 0 && ::rename(staged.c_str(), path.c_str()) == 0;
    if (written) return;
    const int error = errno;
    ::unlink(staged.c_str());
    errno = error;
    fail_to_write(path);
}

std::string read_model_text(const std::string& path) {
    return read_text(path != "-" && is_directory(path) ? path + "/config.json" : path);
}

}  // namespace attnsmith::cli
