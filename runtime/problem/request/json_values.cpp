#include "problem/request/json_values.hpp"

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace attnsmith::problem {

using nlohmann::json;

std::int64_t as_integer(std::string_view field, const json& value) {
    const bool too_large =
        value.is_number_unsigned() && value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max();
    if (value.is_number_integer() && !too_large) return value.get<std::int64_t>();
    throw InvalidRequest(std::string(field), describe(value), "an integer");
}

std::int64_t as_given_count(std::string_view field, const json& value) {
    const std::int64_t count = as_integer(field, value);
    if (count != 0) return count;
    throw InvalidRequest(std::string(field), "0", "an integer from 1, or leave the field out");
}

double as_number(std::string_view field, const json& value) {
    if (value.is_number()) return value.get<double>();
    throw InvalidRequest(std::string(field), describe(value), "a number");
}

bool as_boolean(std::string_view field, const json& value) {
    if (value.is_boolean()) return value.get<bool>();
    throw InvalidRequest(std::string(field), describe(value), "true or false");
}

int as_alignment(std::string_view field, const json& value) {
    const std::int64_t alignment = as_integer(field, value);
    if (alignment >= 2 && alignment <= 16) return static_cast<int>(alignment);
    throw InvalidRequest(std::string(field), describe(value), "16, 8, 4 or 2 bytes");
}

std::optional<std::int64_t> as_optional_integer(std::string_view field, const json& value) {
    if (value.is_null()) return std::nullopt;
    return as_integer(field, value);
}

std::optional<double> as_optional_number(std::string_view field, const json& value) {
    if (value.is_null()) return std::nullopt;
    return as_number(field, value);
}

}  // namespace attnsmith::problem
