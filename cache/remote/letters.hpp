// Names of hosts and headers, whose letters are the same in either case. ASCII alone, whatever the locale.
// Internal to cache/, and for who reads addresses.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace attnsmith::cache {

constexpr char small_letter(char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
}

constexpr bool is_blank_or_control(char letter) {
    const auto byte = static_cast<unsigned char>(letter);
    return byte <= 0x20 || byte == 0x7f;
}

inline std::string in_small_letters(std::string_view text) {
    std::string small(text);
    std::ranges::transform(small, small.begin(), small_letter);
    return small;
}

constexpr bool same_but_for_case(std::string_view one, std::string_view other) {
    return std::ranges::equal(one, other, {}, small_letter, small_letter);
}

}  // namespace attnsmith::cache
