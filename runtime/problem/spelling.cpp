#include "problem/spelling.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

namespace attnsmith::problem {
namespace {

// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> before_previous(b.size() + 1);
    std::vector<std::size_t> previous(b.size() + 1);
    std::vector<std::size_t> current(b.size() + 1);
    std::iota(previous.begin(), previous.end(), std::size_t{0});
    for (std::size_t i = 1; i <= a.size(); ++i) {
        current[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t substitution = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
            current[j] = std::min({previous[j] + 1, current[j - 1] + 1, substitution});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                current[j] = std::min(current[j], before_previous[j - 2] + 1);
            }
        }
        before_previous = std::exchange(previous, current);
    }
    return previous[b.size()];
}

std::string join(std::span<const std::string_view> words, std::string_view last) {
    std::string text;
    for (std::size_t i = 0; i < words.size(); ++i) {
        if (i > 0) text += i + 1 == words.size() ? last : ", ";
        text += words[i];
    }
    return text;
}

}  // namespace

std::string_view nearest_name(std::string_view word, std::span<const std::string_view> candidates) {
    constexpr std::size_t kLongestWord =
        64;  // anything longer is no misspelling, and would take long to compare
    if (word.empty() || word.size() > kLongestWord) return {};
    std::string_view nearest;
    std::size_t least = std::max<std::size_t>(2, word.size() / 2) + 1;
    for (const std::string_view candidate : candidates) {
        const std::size_t distance = edit_distance(word, candidate);
        if (distance < least && distance < candidate.size()) {
            least = distance;
            nearest = candidate;
        }
    }
    return nearest;
}

std::string accepted_words(std::string_view given, std::span<const std::string_view> words) {
    std::string text = join_or(words);
    const std::string_view nearest = nearest_name(given, words);
    // Words are short: half of a word's letters would make "fp8" a misspelling of fp16.
    if (!nearest.empty() && edit_distance(given, nearest) <= std::max<std::size_t>(1, given.size() / 3))
        text += fmt::format(" (did you mean {}?)", nearest);
    return text;
}

std::string join_or(std::span<const std::string_view> words) { return join(words, " or "); }
std::string join_and(std::span<const std::string_view> words) { return join(words, " and "); }

std::string quote(std::string_view text) {
    constexpr std::size_t kMost = 60;
    const bool cut = text.size() > kMost;
    const nlohmann::json value = std::string(text.substr(0, kMost));
    // ensure_ascii and replace: half a character at the cut, or bytes that are no UTF-8, come out as escapes.
    std::string line = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    if (cut) line += "...";
    return line;
}

}  // namespace attnsmith::problem
