#include "cache/remote/netrc.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "cache/files/file_system.hpp"
#include "cache/files/named_file.hpp"
#include "cache/remote/letters.hpp"

namespace attnsmith::cache {
namespace {

constexpr std::size_t kMostNetrcBytes = std::size_t{1} << 20;
constexpr const char* kUnfinished = "a word is missing, or the end of one in quotes";

// Words, one after the other, and the line that the last one is of.
class NetrcWords {
  public:
    explicit NetrcWords(std::string_view text) : rest_(text) {}

    // Nothing at the end, and for a quote that has none.
    std::optional<std::string> next() {
        skip_blanks_and_comments();
        if (rest_.empty()) return std::nullopt;
        if (rest_.front() == '"') return quoted();
        const std::size_t end = std::min(rest_.find_first_of(" \t\r\n"), rest_.size());
        std::string word(rest_.substr(0, end));
        take(end);
        return word;
    }

    void skip_to_empty_line() {
        bool empty = false;
        while (!rest_.empty() && !empty) {
            const std::size_t end = std::min(rest_.find('\n'), rest_.size());
            take(std::min(end + 1, rest_.size()));
            empty = rest_.starts_with('\n') || rest_.starts_with("\r\n");
        }
    }

    bool at_end() const { return rest_.empty(); }
    int line() const { return line_; }

  private:
    void skip_blanks_and_comments() {
        for (;;) {
            take(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size()));
            if (rest_.empty() || rest_.front() != '#') return;
            take(std::min(rest_.find('\n'), rest_.size()));
        }
    }

    std::optional<std::string> quoted() {
        std::string word;
        for (std::size_t i = 1; i < rest_.size(); ++i) {
            if (rest_[i] == '"') {
                take(i + 1);
                return word;
            }
            const bool escaped = rest_[i] == '\\' && i + 1 < rest_.size();
            const char letter = escaped ? rest_[++i] : rest_[i];
            word += !escaped        ? letter
                    : letter == 'n' ? '\n'
                    : letter == 'r' ? '\r'
                    : letter == 't' ? '\t'
                                    : letter;
        }
        return std::nullopt;
    }

    void take(std::size_t bytes) {
        line_ += static_cast<int>(std::ranges::count(rest_.substr(0, bytes), '\n'));
        rest_.remove_prefix(bytes);
    }

    std::string_view rest_;
    int line_ = 1;
};

// In a word that is a header's, a line break would make another header.
bool has_line_break(std::string_view word) { return word.find_first_of("\r\n") != word.npos; }

}  // namespace

Result<Netrc> parse_netrc(std::string_view text) {
    Netrc netrc;
    NetrcWords words(text);
    const auto fault = [&](const char* what) {
        return Status::recoverable_error(EBADMSG, {}, fmt::format("line {}: {}", words.line(), what));
    };
    while (const auto word = words.next()) {
        if (*word == "default") {
            netrc.emplace_back();
            continue;
        }
        const bool known = *word == "machine" || *word == "login" || *word == "password" ||
                           *word == "account" || *word == "macdef";
        if (!known) return fault("a word that a netrc file does not have");
        auto value = words.next();
        if (!value) return fault(kUnfinished);
        if (has_line_break(*value)) return fault("a word has a line break");
        if (*word == "macdef") {
            words.skip_to_empty_line();
        } else if (*word == "machine") {
            // An empty one would be any host's.
            if (value->empty()) return fault("a machine has no name");
            netrc.push_back({.machine = *std::move(value)});
        } else if (netrc.empty()) {
            return fault("it comes before any machine");
        } else if (*word != "account") {
            (*word == "login" ? netrc.back().login : netrc.back().password) = *std::move(value);
        }
    }
    if (!words.at_end()) return fault(kUnfinished);
    return netrc;
}

Result<Netrc> read_netrc(const std::string& file) {
    std::string text;
    if (Status read = read_named_file(posix_file_system(), file, kMostNetrcBytes, text); !read.ok())
        return read;
    Result<Netrc> netrc = parse_netrc(text);
    if (netrc) return netrc;
    Status status = netrc.status();
    status.path = file;
    return status;
}

const NetrcEntry* entry_for(const Netrc& netrc, std::string_view host) {
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);  // IPv6
    const auto found = std::ranges::find_if(netrc, [&](const NetrcEntry& one) {
        return one.machine.empty() || same_but_for_case(one.machine, host);
    });
    return found == netrc.end() ? nullptr : &*found;
}

}  // namespace attnsmith::cache
