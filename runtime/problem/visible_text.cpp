#include "problem/visible_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>

namespace attnsmith::problem {
namespace {

struct Range {
    char32_t first, last;
};

// Ascending. By Unicode 15.1: the general categories Cc, Zl and Zp, what has the property
// Default_Ignorable_Code_Point but for variation selectors, and the bidirectional controls.
constexpr Range kHidden[] = {
    {0x00, 0x1f},        // C0
    {0x7f, 0x9f},        // DEL and C1, where 0x9b begins a command as ESC [ does
    {0xad, 0xad},        // soft hyphen
    {0x34f, 0x34f},      // combining grapheme joiner
    {0x61c, 0x61c},      // Arabic letter mark
    {0x115f, 0x1160},    // Hangul fillers
    {0x17b4, 0x17b5},    // Khmer inherent vowels
    {0x180e, 0x180e},    // Mongolian vowel separator
    {0x200b, 0x200f},    // zero width, and marks of direction
    {0x2028, 0x202e},    // separators of lines and paragraphs, embeddings and overrides of direction
    {0x2060, 0x206f},    // word joiner, invisible operators, isolates
    {0x3164, 0x3164},    // Hangul filler
    {0xfeff, 0xfeff},    // byte order mark
    {0xffa0, 0xffa0},    // halfwidth Hangul filler
    {0xfff9, 0xfffb},    // interlinear annotation
    {0x1bca0, 0x1bca3},  // shorthand format controls
    {0x1d173, 0x1d17a},  // musical format controls
    {0xe0000, 0xe0fff},  // tags
};

bool is_hidden(char32_t point) {
    const auto* const after =
        std::ranges::upper_bound(kHidden, point, {}, [](const Range& range) { return range.first; });
    return after != std::begin(kHidden) && point <= std::prev(after)->last;
}

struct Character {
    char32_t point;
    std::size_t bytes;
};

// The character that a text begins with; nothing where that is no UTF-8 (RFC 3629: no overlong forms, no
// surrogates). REQUIRES: not empty.
std::optional<Character> first_character(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    if (byte(0) < 0x80) return Character{byte(0), 1};
    const std::size_t bytes = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
    if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < bytes) return std::nullopt;
    char32_t point = byte(0) & (0x7f >> bytes);
    for (std::size_t i = 1; i < bytes; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return std::nullopt;
        point = point << 6 | (byte(i) & 0x3f);
    }
    constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    const bool is_surrogate = point >= 0xd800 && point <= 0xdfff;
    if (point < kLeast[bytes] || point > 0x10ffff || is_surrogate) return std::nullopt;
    return Character{point, bytes};
}

enum class Form { line, lines, json };

std::string spelled(char32_t point, Form form) {
    const auto number = static_cast<std::uint32_t>(point);
    if (number < 0x80 && form != Form::json) return fmt::format("\\x{:02x}", number);
    if (number < 0x10000) return fmt::format("\\u{:04x}", number);
    if (form != Form::json) return fmt::format("\\U{:08x}", number);
    const std::uint32_t rest = number - 0x10000;  // as UTF-16 has it
    return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
}

std::string made_visible(std::string_view text, Form form) {
    std::string result;
    result.reserve(text.size());
    while (!text.empty()) {
        const std::optional<Character> character = first_character(text);
        const std::size_t bytes = character ? character->bytes : 1;
        const bool is_layout = character && (character->point == U'\n' || character->point == U'\t');
        const bool stays = character && (!is_hidden(character->point) || (is_layout && form != Form::line));
        if (stays) {
            result += text.substr(0, bytes);
        } else if (character) {
            result += spelled(character->point, form);
        } else {
            result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
        }
        text.remove_prefix(bytes);
    }
    return result;
}

}  // namespace

std::string visible(std::string_view text) { return made_visible(text, Form::line); }
std::string visible_lines(std::string_view text) { return made_visible(text, Form::lines); }
std::string visible_json(std::string_view json) { return made_visible(json, Form::json); }

}  // namespace attnsmith::problem
