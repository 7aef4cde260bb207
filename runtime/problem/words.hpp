// A list of words for an enumeration's values, with the numbers that stand for them in the C ABI.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/error.hpp"
#include "problem/spelling.hpp"

namespace attnsmith::problem {

enum class Spelling : std::uint8_t { canonical, alias };

template <typename Enum>
struct Word {
    std::string_view name;
    Enum value;
    std::int32_t number;  // as attnsmith.h has it
    Spelling spelling = Spelling::canonical;
};

// True if each enumerator has the number that attnsmith.h has for it.
template <typename Enum>
constexpr bool has_numbers_of_c(std::span<const Word<Enum>> words) {
    return std::ranges::all_of(
        words, [](const Word<Enum>& word) { return static_cast<std::int32_t>(word.value) == word.number; });
}
template <typename Enum, std::size_t Count>
constexpr bool has_numbers_of_c(const Word<Enum> (&words)[Count]) {
    return has_numbers_of_c(std::span<const Word<Enum>>(words));
}

template <typename Enum>
struct WordList {
    std::span<const Word<Enum>> words;
    std::span<const Enum> accepted{};  // in the order of messages; empty: all of the words
    // Throws Unsupported for a value that means something and is not supported.
    void (*check)(std::string_view field, Enum value) = nullptr;

    constexpr bool accepts(Enum value) const {
        if (!accepted.empty()) return std::ranges::find(accepted, value) != accepted.end();
        return find(value) != nullptr;
    }

    // The canonical words that are accepted, for messages and help.
    std::vector<std::string_view> names() const {
        std::vector<std::string_view> names;
        for (const Enum value : accepted) names.push_back(name_of(value));
        if (!accepted.empty()) return names;
        for (const Word<Enum>& word : words)
            if (word.spelling == Spelling::canonical) names.push_back(word.name);
        return names;
    }

    // What a word stands for, an alias too; absent for one that is none of the list.
    constexpr std::optional<Enum> value_of(std::string_view text) const noexcept {
        const auto word = std::ranges::find(words, text, &Word<Enum>::name);
        return word == words.end() ? std::nullopt : std::optional(word->value);
    }

    // An enumerator that a caller made by a cast has no name.
    std::string_view name_of(Enum value) const noexcept {
        const Word<Enum>* const word = find(value);
        return word == nullptr ? "(not an enumerator)" : word->name;
    }

    // `text` may be an alias. Throws InvalidRequest(field, text, what is accepted).
    Enum parse(std::string_view field, std::string_view text) const {
        const auto word = std::ranges::find(words, text, &Word<Enum>::name);
        if (word != words.end()) {
            if (check != nullptr) check(field, word->value);
            if (accepts(word->value)) return word->value;
        }
        throw InvalidRequest(std::string(field), quote(text), accepted_words(text, names()));
    }

    // Throws InvalidRequest for an enumerator that the list does not accept.
    void check_value(std::string_view field, Enum value) const {
        if (check != nullptr) check(field, value);
        if (accepts(value)) return;
        throw InvalidRequest(std::string(field), std::string(name_of(value)), join_or(names()));
    }

    std::int32_t number_of(Enum value) const {
        const Word<Enum>* const word = find(value);
        return word == nullptr ? 0 : word->number;
    }

    // What a number of the C ABI stands for; absent for a 0 that is no word's: the default, which `otherwise`
    // names in messages. Throws InvalidRequest.
    std::optional<Enum> from_number(std::string_view field, std::int32_t number,
                                    std::string_view otherwise) const {
        const auto word = std::ranges::find(words, number, &Word<Enum>::number);
        if (word == words.end() && number == 0) return std::nullopt;
        if (word != words.end()) {
            if (check != nullptr) check(field, word->value);
            if (accepts(word->value)) return word->value;
        }
        throw InvalidRequest(std::string(field), std::to_string(number), accepted_numbers(otherwise));
    }

  private:
    constexpr const Word<Enum>* find(Enum value) const noexcept {
        for (const Word<Enum>& word : words)
            if (word.value == value) return &word;
        return nullptr;
    }

    // "0 (bf16), 1 (fp16) or 2 (bf16)".
    std::string accepted_numbers(std::string_view otherwise) const {
        std::vector<std::string> texts;
        const auto add = [&](std::int32_t number, std::string_view name) {
            texts.push_back(std::to_string(number) + " (" + std::string(name) + ")");
        };
        if (std::ranges::find(words, 0, &Word<Enum>::number) == words.end()) add(0, otherwise);
        for (const Word<Enum>& word : words)
            if (word.spelling == Spelling::canonical && accepts(word.value)) add(word.number, word.name);
        return join_or(std::vector<std::string_view>(texts.begin(), texts.end()));
    }
};

}  // namespace attnsmith::problem
