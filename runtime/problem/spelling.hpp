// How messages write words and values.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace attnsmith::problem {

// The candidate at the least edit distance from `word`, or "" when none is near enough to be a misspelling of
// it.
std::string_view nearest_name(std::string_view word, std::span<const std::string_view> candidates);

// What an error says that is accepted instead of `given`: the words, and the one that it is a misspelling of.
std::string accepted_words(std::string_view given, std::span<const std::string_view> words);

// "a", "a or b", "a, b or c".
std::string join_or(std::span<const std::string_view> words);

// "a", "a and b", "a, b and c".
std::string join_and(std::span<const std::string_view> words);

// `text` as a JSON string: one line, plain ASCII, cut when long. For values in messages.
std::string quote(std::string_view text);

}  // namespace attnsmith::problem
