// The kinds of fields: what a row of the table of fields derives from its members of AttentionSpec or
// PlanSizes and of the C structs.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>

#include "attnsmith/error.hpp"
#include "problem/limits.hpp"
#include "problem/request/json_values.hpp"
#include "problem/request/request_field.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::problem::fields {

using nlohmann::json;
using nlohmann::ordered_json;

// The members that a pointer to one of AttentionSpec, PlanSizes or their C structs names.
inline AttentionSpec& part(AttentionRequest& request, const AttentionSpec*) { return request.spec; }
inline PlanSizes& part(AttentionRequest& request, const PlanSizes*) { return request.sizes; }
inline attnsmith_spec& part(CRequest& request, const attnsmith_spec*) { return request.spec; }
inline attnsmith_sizes& part(CRequest& request, const attnsmith_sizes*) { return request.sizes; }

template <typename Request, typename Class, typename Value>
Value& at(Request& request, Value Class::*member) {
    return part(request, static_cast<const Class*>(nullptr)).*member;
}

template <typename Request, typename Class, typename Value>
const Value& at(const Request& request, Value Class::*member) {
    return at(const_cast<Request&>(request), member);
}

template <auto member, auto read>
void set(AttentionRequest& request, std::string_view field, const json& value) {
    at(request, member) = read(field, value);
}

template <auto member, const auto& words>
void set_word(AttentionRequest& request, std::string_view field, const json& value) {
    auto& word = at(request, member);
    if constexpr (requires { word.reset(); }) {
        if (value.is_null()) return word.reset();
    }
    word = as_word(field, value, words);
}

template <typename Value>
ordered_json json_value(const Value& value) {
    if constexpr (std::is_enum_v<Value>)
        return to_string(value);
    else if constexpr (requires { value.has_value(); })
        return value ? json_value(*value) : nullptr;
    else
        return value;
}

template <auto member>
ordered_json get(const AttentionRequest& request) {
    return json_value(at(request, member));
}

template <typename Value>
std::uint64_t bits_of(Value value) {
    return static_cast<std::uint64_t>(value);
}
inline std::uint64_t bits_of(double value) { return std::bit_cast<std::uint64_t>(value == 0 ? 0.0 : value); }
template <typename Value>
std::uint64_t bits_of(const std::optional<Value>& value) {
    return value ? bits_of(*value) : ~std::uint64_t{0};
}

template <auto member>
std::uint64_t bits(const AttentionRequest& request) {
    return bits_of(at(request, member));
}

// In C 0 is the default, and of booleans and words a word of its own.
template <auto member, auto c_member>
void from_c(AttentionRequest& request, std::string_view field, const CRequest& c) {
    auto& value = at(request, member);
    const auto given = at(c, c_member);
    if constexpr (std::is_same_v<decltype(value), bool&>) {
        if (given != 0 && given != 1)
            throw InvalidRequest(std::string(field), std::to_string(given), "0 or 1");
        value = given == 1;
    } else if (given != 0) {
        value = given;
    }
}

template <auto member, auto c_member>
void to_c(const AttentionRequest& request, CRequest& c) {
    const auto& value = at(request, member);
    if constexpr (requires { value.has_value(); })
        at(c, c_member) = value.value_or(0);
    else
        at(c, c_member) = value;
}

template <auto member, auto c_member, const auto& words>
void word_from_c(AttentionRequest& request, std::string_view field, const CRequest& c) {
    auto& value = at(request, member);
    if constexpr (requires { value.has_value(); })
        value = words.from_number(field, at(c, c_member), "the default");
    else if (const auto given = words.from_number(field, at(c, c_member), words.name_of(value)))
        value = *given;
}

template <auto member, auto c_member, const auto& words>
void word_to_c(const AttentionRequest& request, CRequest& c) {
    const auto& value = at(request, member);
    if constexpr (requires { value.has_value(); })
        at(c, c_member) = value ? words.number_of(*value) : 0;
    else
        at(c, c_member) = words.number_of(value);
}

// A bound that `has` does not switch on would be ignored in silence.
template <auto member, auto c_member, auto c_has>
void bound_from_c(AttentionRequest& request, std::string_view field, const CRequest& c) {
    const std::int32_t has = at(c, c_has);
    const std::int64_t bound = at(c, c_member);
    if (has != 0 && has != 1)
        throw InvalidRequest(fmt::format("has_{}", field), std::to_string(has), "0 or 1");
    if (has == 1)
        at(request, member) = bound;
    else if (bound != 0)
        throw InvalidRequest(std::string(field), fmt::format("{} with has_{} 0", bound, field),
                             fmt::format("has_{} 1, or 0 for no bound on this side", field));
}

template <auto member, auto c_member, auto c_has>
void bound_to_c(const AttentionRequest& request, CRequest& c) {
    to_c<member, c_member>(request, c);
    at(c, c_has) = at(request, member) ? 1 : 0;
}

template <auto member, const auto& words>
void check_word(AttentionRequest& request, std::string_view field) {
    const auto& value = at(request, member);
    if constexpr (requires { value.has_value(); }) {
        if (value) words.check_value(field, *value);
    } else {
        words.check_value(field, value);
    }
}

// FlashAttention and FlashInfer write -1 for no bound. A window that reaches past the longest sequence is no
// window.
template <auto member>
void check_window(AttentionRequest& request, std::string_view field) {
    constexpr std::int64_t kNoBound = -1;
    auto& window = at(request, member);
    if (!window) return;
    if (*window < kNoBound) {
        throw InvalidRequest(std::string(field), std::to_string(*window),
                             "an integer from 0, or -1 or nothing for no bound on this side");
    }
    if (*window == kNoBound || *window >= kMaxLength) window.reset();
}

template <const auto& words>
std::vector<std::string_view> names_of() {
    return words.names();
}

// The kinds of fields.
template <auto member, auto c_member, auto read>
constexpr RequestField value_field(FieldType type, std::string_view name, std::string_view help) {
    return {.name = name,
            .type = type,
            .help = help,
            .set = set<member, read>,
            .get = get<member>,
            .from_c = from_c<member, c_member>,
            .to_c = to_c<member, c_member>,
            .bits = bits<member>};
}

template <auto member, auto c_member>
constexpr RequestField integer_field(std::string_view name, std::string_view help) {
    return value_field<member, c_member, as_integer>(FieldType::integer, name, help);
}

template <auto member, auto c_member>
constexpr RequestField count_field(std::string_view name, std::string_view help) {
    return value_field<member, c_member, as_given_count>(FieldType::integer, name, help);
}

template <auto member, auto c_member>
constexpr RequestField factor_field(std::string_view name, std::string_view help) {
    return value_field<member, c_member, as_optional_number>(FieldType::number, name, help);
}

template <auto member, auto c_member>
constexpr RequestField boolean_field(std::string_view name, std::string_view help) {
    return value_field<member, c_member, as_boolean>(FieldType::boolean, name, help);
}

template <auto member, auto c_member, auto c_has>
constexpr RequestField window_field(std::string_view name, std::string_view help) {
    return {.name = name,
            .type = FieldType::integer,
            .help = help,
            .set = set<member, as_optional_integer>,
            .get = get<member>,
            .from_c = bound_from_c<member, c_member, c_has>,
            .to_c = bound_to_c<member, c_member, c_has>,
            .bits = bits<member>,
            .check = check_window<member>};
}

template <auto member, auto c_member, const auto& words>
constexpr RequestField word_field(std::string_view name, std::string_view help) {
    return {.name = name,
            .type = FieldType::word,
            .help = help,
            .set = set_word<member, words>,
            .get = get<member>,
            .from_c = word_from_c<member, c_member, words>,
            .to_c = word_to_c<member, c_member, words>,
            .bits = bits<member>,
            .check = check_word<member, words>,
            .words = names_of<words>};
}

constexpr RequestField with_role(RequestField field, FieldRole role) {
    field.role = role;
    return field;
}

template <auto member, auto option>
void from_options(AttentionRequest& request, const ModelOptions& options) {
    if constexpr (requires { (options.*option).has_value(); }) {
        if (options.*option) at(request, member) = *(options.*option);
    } else {
        at(request, member) = options.*option;
    }
}

template <auto member, auto option>
void to_options(const AttentionRequest& request, ModelOptions& options) {
    options.*option = at(request, member);
}

template <auto member>
ordered_json get_option(const ModelOptions& options) {
    return json_value(options.*member);
}

// A field that may be given beside a model.
template <auto member, auto option>
constexpr RequestField beside_model(RequestField field, FieldRole role) {
    field.from_options = from_options<member, option>;
    field.to_options = to_options<member, option>;
    field.option = get_option<option>;
    return with_role(field, role);
}

// One that says nothing of a model's attentions: it is of the appends that `slots` asks for.
template <auto member, auto option>
constexpr RequestField append_choice(RequestField field) {
    field = beside_model<member, option>(field, FieldRole::choice);
    field.from_options = nullptr;
    return field;
}

template <auto member, auto option>
constexpr RequestField choice(const RequestField& field) {
    return beside_model<member, option>(field, FieldRole::choice);
}

template <auto member, auto option>
constexpr RequestField size(const RequestField& field) {
    return beside_model<member, option>(field, FieldRole::size);
}

constexpr RequestField of_pages(RequestField field) {
    field.of_pages = true;
    return field;
}

}  // namespace attnsmith::problem::fields
