#include "cli/progress.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/output.hpp"

namespace attnsmith::cli {

Progress::Progress(Elsewhere elsewhere)
    : terminal_(error_is_terminal()), lines_(elsewhere == Elsewhere::lines) {}

void Progress::step(int done, int total, const std::string& what) {
    const std::string text = printable(what);
    const std::lock_guard lock(mutex_);
    if (!terminal_) {
        if (lines_) print_note(fmt::format("[{}/{}] {}\n", done, total, text));
        return;
    }
    constexpr int kBar = 24;
    const int filled = kBar * done / std::max(total, 1);
    draw(fmt::format("[{}{}] {}/{}  {}", std::string(static_cast<std::size_t>(filled), '#'),
                     std::string(static_cast<std::size_t>(kBar - filled), '.'), done, total, text));
}

void Progress::note(const std::string& what) {
    const std::string text = printable(what);
    const std::lock_guard lock(mutex_);
    if (terminal_) {
        draw(text);
    } else if (lines_) {
        print_note(text + "\n");
    }
}

void Progress::draw(std::string line) {
    // One column is left free: a full line would wrap, and could not be taken away.
    const int columns = std::max(terminal_columns() - 1, 1);
    line.resize(std::min(line.size(), static_cast<std::size_t>(columns)));
    print_note("\r\x1b[K" + line);
    drawn_ = true;
}

void Progress::clear() {
    const std::lock_guard lock(mutex_);
    if (drawn_) print_note("\r\x1b[K");
    drawn_ = false;
}

}  // namespace attnsmith::cli
