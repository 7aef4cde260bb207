#include "cli/program/files.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "cli/program/command.hpp"
#include "cli/program/hub_name.hpp"
#include "engine/text_file.hpp"
#include "problem/json_text.hpp"

namespace attnsmith::cli {
namespace {

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
bool write_whole(int descriptor, std::string_view text) {
    while (!text.empty()) {
        const ssize_t count = ::write(descriptor, text.data(), text.size());
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return false;
        text.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
}

}  // namespace

namespace {

std::string read_up_to(const std::string& path, std::size_t most_bytes) {
    const bool is_standard = path == "-";
    std::string text;
    const std::error_code error = is_standard ? engine::read_text(STDIN_FILENO, text, most_bytes)
                                              : engine::read_text(path, text, most_bytes);
    if (error) {
        const char* const name = is_standard ? "standard input" : path.empty() ? "\"\"" : path.c_str();
        throw BadUsage(fmt::format("{}: cannot be read: {}", name, error.message()));
    }
    return text;
}

// Nothing is downloaded: a name of the hub is told how its file is got.
void refuse_hub_name(const std::string& path) {
    if (::access(path.c_str(), F_OK) == 0 || !is_hub_name(path)) return;
    throw BadUsage(
        fmt::format("{0}: there is no such file; if it is a model of the Hugging Face hub, get its file by "
                    "`hf download {0} config.json`, which prints the path to give",
                    path));
}

}  // namespace

std::string read_text(const std::string& path) { return read_up_to(path, engine::kMostTextBytes); }

std::string read_long_text(const std::string& path) {
    constexpr std::size_t kMostBytes = std::size_t{64} << 20;
    std::string text = read_up_to(path, kMostBytes + 1);
    if (text.size() <= kMostBytes) return text;
    throw BadUsage(
        fmt::format("{}: is over {} bytes; sort -u leaves out what stands there twice", path, kMostBytes));
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
    const bool written = write_whole(file.number(), text) && ::fchmod(file.number(), 0666 & ~mask) == 0 &&
                         ::fsync(file.number()) == 0 && ::rename(staged.c_str(), path.c_str()) == 0;
    if (written) return;
    const int error = errno;
    ::unlink(staged.c_str());
    errno = error;
    fail_to_write(path);
}

std::string read_model_text(const std::string& path) {
    refuse_hub_name(path);
    const std::string file = path != "-" && is_directory(path) ? path + "/config.json" : path;
    std::string text = read_up_to(file, problem::kMostModelBytes + 1);
    if (text.size() <= problem::kMostModelBytes) return text;
    struct stat info {};
    const bool has_size = file != "-" && ::stat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode);
    throw BadUsage(fmt::format("{}: has {} bytes; a config.json may have {}", file,
                               has_size ? std::to_string(info.st_size) : "more", problem::kMostModelBytes));
}

}  // namespace attnsmith::cli
