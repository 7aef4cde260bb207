// Reports as JSON, by their tables. For source files alone: the JSON library's templates take long to
// compile.
#pragma once

#include <concepts>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "problem/report/table.hpp"

namespace attnsmith::problem {

// How a value of a type is written; other types have specialisations.
template <class Value>
struct Written {
    static nlohmann::ordered_json write(const Value& value);
};

template <class Value>
nlohmann::ordered_json written(const Value& value) {
    return Written<Value>::write(value);
}

// A text or list without contents, 0, or an absent value; no other value is empty.
template <class Value>
bool is_empty(const Value& value) {
    if constexpr (std::is_arithmetic_v<Value>)
        return value == Value{};
    else if constexpr (requires { value.has_value(); })
        return !value.has_value();
    else if constexpr (requires { value.empty(); })
        return value.empty();
    else
        return false;
}

template <class Report, class Member>
void write_field(const MemberField<Report, Member>& field, const Report& report,
                 nlohmann::ordered_json& json) {
    const Member& value = report.*field.member;
    if (field.note.may_be_left_out && is_empty(value)) return;
    json[std::string(field.name)] = written(value);
}

template <class Report, class Value, class... Members>
void write_field(const ComputedField<Report, Value, Members...>& field, const Report& report,
                 nlohmann::ordered_json& json) {
    json[std::string(field.name)] = written(field.compute(report));
}

template <class... Fields, class Report>
void write_field(const FieldGroup<Fields...>& group, const Report& report, nlohmann::ordered_json& json);
template <class Report, class Member>
void write_field(const InlinedMember<Report, Member>& inlined, const Report& report,
                 nlohmann::ordered_json& json);

template <class... Fields, class Report>
void write_fields(const std::tuple<Fields...>& fields, const Report& report, nlohmann::ordered_json& json) {
    std::apply([&](const auto&... field) { (write_field(field, report, json), ...); }, fields);
}

template <class... Fields, class Report>
void write_field(const FieldGroup<Fields...>& group, const Report& report, nlohmann::ordered_json& json) {
    auto object = nlohmann::ordered_json::object();
    write_fields(group.fields, report, object);
    json[std::string(group.name)] = std::move(object);
}

template <HasTable Report>
void write_members(const Report& report, nlohmann::ordered_json& json) {
    static_assert(names_every_member<Report>(),
                  "the report's table lacks a member of its struct, or has one twice");
    write_fields(ReportTable<Report>::fields, report, json);
}
template <HasTable Report>
void write_members(const std::optional<Report>& report, nlohmann::ordered_json& json) {
    if (report) write_members(*report, json);
}

template <class Report, class Member>
void write_field(const InlinedMember<Report, Member>& inlined, const Report& report,
                 nlohmann::ordered_json& json) {
    write_members(report.*inlined.member, json);
}

// A report as a JSON object, which begins with its schema if it has one.
template <HasTable Report>
nlohmann::ordered_json json_of(const Report& report) {
    auto json = nlohmann::ordered_json::object();
    if constexpr (IsDocument<Report>) json["schema"] = ReportTable<Report>::schema;
    write_members(report, json);
    return json;
}

template <class Value>
nlohmann::ordered_json Written<Value>::write(const Value& value) {
    if constexpr (HasTable<Value>)
        return json_of(value);
    else if constexpr (std::is_enum_v<Value>)
        return to_string(value);
    else
        return value;
}

template <class Value>
struct Written<std::optional<Value>> {
    static nlohmann::ordered_json write(const std::optional<Value>& value) {
        return value ? written(*value) : nlohmann::ordered_json();
    }
};

template <class Value>
struct Written<std::vector<Value>> {
    static nlohmann::ordered_json write(const std::vector<Value>& values) {
        auto json = nlohmann::ordered_json::array();
        for (const Value& value : values) json.push_back(written(value));
        return json;
    }
};

}  // namespace attnsmith::problem
