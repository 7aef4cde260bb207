#include "engine/text_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace attnsmith::engine {
namespace {

std::error_code last_error() { return {errno, std::generic_category()}; }

// REQUIRES: `text` is as long as may be read.
std::error_code read_into(int descriptor, std::string& text) {
    std::size_t size = 0;
    while (size < text.size()) {
        const ssize_t count = ::read(descriptor, text.data() + size, text.size() - size);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return last_error();
        if (count == 0) break;
        size += static_cast<std::size_t>(count);
    }
    text.resize(size);
    return {};
}

}  // namespace

std::error_code read_text(const std::string& path, std::string& text, std::size_t most_bytes) {
    text.assign(most_bytes, '\0');  // before there is a file that would have to be closed
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return last_error();
    const std::error_code error = read_into(descriptor, text);
    ::close(descriptor);
    return error;
}

std::error_code read_text(int descriptor, std::string& text, std::size_t most_bytes) {
    text.assign(most_bytes, '\0');
    return read_into(descriptor, text);
}

}  // namespace attnsmith::engine
