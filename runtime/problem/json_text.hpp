// Strict JSON: text from outside becomes a nlohmann::json, or an InvalidRequest that says where it went
// wrong.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace attnsmith::problem {

inline constexpr std::size_t kMostJsonBytes = std::size_t{1} << 20;
// Quantised models list each of their tensors in it.
inline constexpr std::size_t kMostModelBytes = std::size_t{16} << 20;

struct JsonRules {
    std::string_view what;  // named in messages: "request", "config.json"
    // Python's json module writes NaN, Infinity and -Infinity, and some config.json have them; they are read
    // as numbers that are not finite, which no field of an attention may be.
    bool python_constants = false;
    // Whether an integer that does not fit 64 bits is an error (else it becomes a double).
    bool exact_integers = true;
    std::size_t most_bytes = kMostJsonBytes;
};

// An object. Throws InvalidRequest for text that is empty, too long, too deep (32), malformed, not an
// object, or that has a key twice in one object.
nlohmann::json parse_json_object(std::string_view text, const JsonRules& rules);

// The JSON library's parser and printer, compiled here once: they are templates that would cost every file
// which calls them a second or more.

// Nothing for text that is no JSON.
std::optional<nlohmann::json> parse_json(std::string_view text);
std::optional<nlohmann::ordered_json> parse_ordered_json(std::string_view text);

// On one line, and with lines indented by two spaces. Bytes that are not UTF-8 become U+FFFD.
std::string one_line(const nlohmann::json& value);
std::string one_line(const nlohmann::ordered_json& value);
std::string indented(const nlohmann::ordered_json& value);

// A value on one short line of plain ASCII, for messages.
std::string describe(const nlohmann::json& value);

// A field's name for messages: as it is where it is an ordinary word, else quoted.
std::string field_name(std::string_view key);

}  // namespace attnsmith::problem
