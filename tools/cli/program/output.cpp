#include "cli/program/output.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "cli/program/terminal.hpp"
#include "problem/json_text.hpp"
#include "problem/visible_text.hpp"

namespace attnsmith::cli {
namespace {

int g_output_error = 0;  // errno of the first write to standard output that failed
bool g_has_printed = false;
Verbosity g_verbosity = Verbosity::usual;

// 0, or errno.
int write_all(int descriptor, std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(descriptor, text.data(), text.size());
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return errno;
        text.remove_prefix(static_cast<std::size_t>(written));
    }
    return 0;
}

}  // namespace

void prepare_standard_streams() {
    // The wrong direction on purpose: using a stream that the caller closed stays an error.
    constexpr int kModes[] = {O_WRONLY, O_RDONLY, O_RDWR};
    for (int descriptor = 0; descriptor < 3; ++descriptor) {
        // open() takes the lowest free descriptor, which is this one.
        if (::fcntl(descriptor, F_GETFD) == -1 && errno == EBADF)
            (void)::open("/dev/null", kModes[descriptor]);
    }
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
}

void print(std::string_view text) {
    g_has_printed = true;
    if (g_output_error == 0) g_output_error = write_all(STDOUT_FILENO, text);
}

void print_json(const nlohmann::ordered_json& json) { print_json(problem::indented(json)); }

void print_json(const std::string& json) { print(problem::visible_json(json) + "\n"); }

std::string finish_output() {
    if (g_output_error == 0 || g_output_error == EPIPE) return {};
    return fmt::format("cannot write to standard output: {}", std::strerror(g_output_error));
}

bool has_printed() { return g_has_printed; }

void print_error(std::string_view message) {
    const std::string label = styled("error:", Style::red, Stream::error);
    (void)write_all(STDERR_FILENO, fmt::format("attnsmith: {} {}\n", label, printable(message)));
}

void print_warning(std::string_view message) {
    const std::string label = styled("warning:", Style::yellow, Stream::error);
    print_note(fmt::format("attnsmith: {} {}\n", label, printable(message)));
}

void print_note(std::string_view text) {
    if (g_verbosity != Verbosity::quiet) (void)write_all(STDERR_FILENO, text);
}

Verbosity verbosity() { return g_verbosity; }

void set_verbosity(Verbosity verbosity) { g_verbosity = verbosity; }

std::string printable(std::string_view text) { return problem::visible(text); }

std::string counted(std::uint64_t count, std::string_view one, std::string_view several) {
    if (count == 1) return fmt::format("1 {}", one);
    return several.empty() ? fmt::format("{} {}s", count, one) : fmt::format("{} {}", count, several);
}

std::string human_bytes(std::uint64_t bytes) {
    constexpr double kStep = 1024;
    if (bytes < 1024) return fmt::format("{} B", bytes);
    constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
    double value = static_cast<double>(bytes) / kStep;
    std::size_t unit = 0;
    while (value >= kStep - 0.05 && unit + 1 < std::size(kUnits)) {
        value /= kStep;
        ++unit;
    }
    return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

void Table::add(std::vector<std::string> row, Style first) {
    for (std::string& cell : row) cell = printable(cell);
    if (first != Style::plain) row.front() = styled(row.front(), first, Stream::output);
    rows_.push_back(std::move(row));
}

std::string Table::text(std::string_view indent) const {
    std::vector<std::size_t> widths(alignment_.size());
    for (const auto& row : rows_) {
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
    }
    std::string text;
    for (const auto& row : rows_) {
        std::string line(indent);
        for (std::size_t i = 0; i < row.size(); ++i) {
            const std::string padding(widths[i] - display_width(row[i]), ' ');
            line += alignment_[i] == '>' ? padding + row[i] : row[i] + padding;
            line += "  ";
        }
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + "\n";
    }
    return text;
}

}  // namespace attnsmith::cli
