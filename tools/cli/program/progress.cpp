#include "cli/program/progress.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/program/output.hpp"
#include "cli/program/terminal.hpp"

namespace attnsmith::cli {
namespace {

// "5 s", "3 min"
std::string duration_text(double seconds) {
    if (seconds < 100) return fmt::format("{:.0f} s", seconds);
    return fmt::format("{:.0f} min", seconds / 60);
}

// As much of a text as `columns` hold; characters stay whole.
std::string cut(const std::string& text, std::size_t columns) {
    std::size_t width = 0, end = 0;
    for (; end < text.size(); ++end) {
        const bool begins = (static_cast<unsigned char>(text[end]) & 0xc0) != 0x80;
        if (begins && ++width > columns) break;
    }
    return text.substr(0, end);
}

}  // namespace

Progress::Progress(Elsewhere elsewhere)
    : terminal_(can_draw(Stream::error)), lines_(elsewhere == Elsewhere::lines) {}

void Progress::begin(int total, const std::string& what) {
    const std::lock_guard lock(mutex_);
    began_ = Clock::now();
    if (terminal_ && total > 0) draw_bar(0, total, printable(what));
}

void Progress::step(int done, int total, const std::string& what, bool costly) {
    const std::string text = printable(what);
    const std::lock_guard lock(mutex_);
    if (costly) ++costly_;
    if (terminal_) {
        draw_bar(done, total, text);
    } else if (lines_) {
        print_note(fmt::format("[{}/{}] {}\n", done, total, text));
    }
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

// What the steps so far took, for each that is left; nothing where none says how long one takes.
std::string Progress::time_left(int done, int total) const {
    if (costly_ == 0 || done >= total) return {};
    const std::chrono::duration<double> passed = Clock::now() - began_;
    return ", " + duration_text(passed.count() / costly_ * (total - done)) + " left";
}

void Progress::draw_bar(int done, int total, const std::string& text) {
    constexpr int kBar = 24;
    const auto filled = static_cast<std::size_t>(kBar * done / std::max(total, 1));
    draw(fmt::format("[{}{}] {}/{}{}  {}", std::string(filled, '#'), std::string(kBar - filled, '.'), done,
                     total, time_left(done, total), text));
}

void Progress::draw(const std::string& line) {
    // One column is left free: a full line would wrap, and could not be taken away.
    const int width = std::max(columns(Stream::error) - 1, 1);
    print_note("\r\x1b[K" + cut(line, static_cast<std::size_t>(width)));
    drawn_ = true;
}

void Progress::clear() {
    const std::lock_guard lock(mutex_);
    if (drawn_) print_note("\r\x1b[K");
    drawn_ = false;
}

}  // namespace attnsmith::cli
