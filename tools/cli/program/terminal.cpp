#include "cli/program/terminal.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>

namespace attnsmith::cli {
namespace {

constexpr int kUsualColumns = 80;
constexpr int kFewestColumns = 20;  // fewer are no width that anything could be laid out for

int descriptor_of(Stream stream) { return stream == Stream::output ? STDOUT_FILENO : STDERR_FILENO; }

std::string_view variable(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::string_view() : value;
}

std::string_view code_of(Style style) {
    switch (style) {
        case Style::bold:
            return "1";
        case Style::red:
            return "1;31";
        case Style::green:
            return "32";
        case Style::yellow:
            return "33";
        case Style::plain:
            break;
    }
    return "";
}

}  // namespace

bool can_draw(Stream stream) {
    const std::string_view terminal = variable("TERM");
    return ::isatty(descriptor_of(stream)) == 1 && !terminal.empty() && terminal != "dumb";
}

bool has_colour(Stream stream) {
    if (!variable("NO_COLOR").empty()) return false;
    const std::string_view forced = variable("CLICOLOR_FORCE");
    return (!forced.empty() && forced != "0") || can_draw(stream);
}

int columns(Stream stream) {
    const std::string_view given = variable("COLUMNS");
    int count = 0;
    const auto parsed = std::from_chars(given.data(), given.data() + given.size(), count);
    if (parsed.ec == std::errc() && parsed.ptr == given.data() + given.size() && count >= kFewestColumns)
        return count;
    winsize size{};
    if (::ioctl(descriptor_of(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualColumns;
    return size.ws_col;
}

std::string styled(std::string_view text, Style style, Stream stream) {
    if (style == Style::plain || text.empty() || !has_colour(stream)) return std::string(text);
    return fmt::format("\x1b[{}m{}\x1b[0m", code_of(style), text);
}

std::size_t display_width(std::string_view text) {
    std::size_t width = 0;
    bool in_escape = false;
    for (const char c : text) {
        if (in_escape) {
            in_escape = c != 'm';
        } else if (c == '\x1b') {
            in_escape = true;
        } else if ((static_cast<unsigned char>(c) & 0xc0) != 0x80) {  // begins a character
            ++width;
        }
    }
    return width;
}

}  // namespace attnsmith::cli
