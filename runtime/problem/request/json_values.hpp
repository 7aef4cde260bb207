// Values of a request's fields, out of JSON. All throw InvalidRequest naming the field.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "attnsmith/error.hpp"
#include "problem/json_text.hpp"
#include "problem/words.hpp"

namespace attnsmith::problem {

std::int64_t as_integer(std::string_view field, const nlohmann::json& value);
// An integer whose absence has a meaning that 0 would share: 0 is a mistake, not a default.
std::int64_t as_given_count(std::string_view field, const nlohmann::json& value);
double as_number(std::string_view field, const nlohmann::json& value);
bool as_boolean(std::string_view field, const nlohmann::json& value);
// A C++ int, without wrapping a value that is out of its range into one that is accepted.
int as_alignment(std::string_view field, const nlohmann::json& value);

// null is absent.
std::optional<std::int64_t> as_optional_integer(std::string_view field, const nlohmann::json& value);
std::optional<double> as_optional_number(std::string_view field, const nlohmann::json& value);

template <typename Enum>
Enum as_word(std::string_view field, const nlohmann::json& value, const WordList<Enum>& words) {
    if (value.is_string()) return words.parse(field, value.get_ref<const std::string&>());
    throw InvalidRequest(std::string(field), describe(value), join_or(words.names()));
}

}  // namespace attnsmith::problem
