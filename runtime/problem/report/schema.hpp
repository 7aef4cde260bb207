// The JSON schemas of reports, by their tables.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "problem/report/json.hpp"

namespace attnsmith::problem {

inline nlohmann::ordered_json reference(std::string_view document, std::string_view definition) {
    return {
        {"$ref", "urn:attnsmith:" + std::string(document) + "/1#/definitions/" + std::string(definition)}};
}

// The schema of a value of a type; types that Written<> is specialised for have specialisations of this, too.
template <class Value>
struct Schema {
    static nlohmann::ordered_json schema();
};

// An object's properties, and which of them are always there.
struct Properties {
    nlohmann::ordered_json properties = nlohmann::ordered_json::object();
    std::vector<std::string> required{};

    void add(std::string_view name, const FieldNote& note, nlohmann::ordered_json type) {
        auto json = nlohmann::ordered_json::object();
        if (!note.about.empty()) json["description"] = note.about;
        json.update(note.definition.empty() ? std::move(type) : reference("common", note.definition));
        properties[std::string(name)] = std::move(json);
        if (!note.may_be_left_out) required.emplace_back(name);
    }
    nlohmann::ordered_json schema() const {
        return {{"type", "object"}, {"required", required}, {"properties", properties}};
    }
};

template <class Member>
nlohmann::ordered_json member_schema(const FieldNote& note) {
    (void)note;
    return Schema<Member>::schema();
}
// An optional member is left out, or null.
template <class Member>
requires std::same_as<Member, std::optional<typename Member::value_type>> nlohmann::ordered_json
member_schema(const FieldNote& note) {
    auto schema = Schema<typename Member::value_type>::schema();
    if (note.may_be_left_out) return schema;
    return {{"anyOf", {std::move(schema), {{"type", "null"}}}}};
}

template <class Report, class Member>
void describe_field(const MemberField<Report, Member>& field, Properties& properties) {
    properties.add(field.name, field.note, member_schema<Member>(field.note));
}
template <class Report, class Value, class... Members>
void describe_field(const ComputedField<Report, Value, Members...>& field, Properties& properties) {
    properties.add(field.name, field.note, member_schema<Value>(field.note));
}
template <class... Fields>
void describe_field(const FieldGroup<Fields...>& group, Properties& properties) {
    Properties inner;
    std::apply([&](const auto&... field) { (describe_field(field, inner), ...); }, group.fields);
    properties.add(group.name, {}, inner.schema());
}

template <class Report>
struct InlinedReport {
    using type = Report;
    static constexpr bool kAlwaysThere = true;
};
template <class Report>
struct InlinedReport<std::optional<Report>> {
    using type = Report;
    static constexpr bool kAlwaysThere = false;
};
template <class Report, class Member>
void describe_field(const InlinedMember<Report, Member>&, Properties& properties) {
    Properties inner;
    std::apply([&](const auto&... field) { (describe_field(field, inner), ...); },
               ReportTable<typename InlinedReport<Member>::type>::fields);
    properties.properties.update(inner.properties);
    if (!InlinedReport<Member>::kAlwaysThere) return;
    properties.required.insert(properties.required.end(), inner.required.begin(), inner.required.end());
}

template <HasTable Report>
Properties properties_of() {
    Properties properties;
    if constexpr (IsDocument<Report>) properties.add("schema", {}, {{"const", ReportTable<Report>::schema}});
    std::apply([&](const auto&... field) { (describe_field(field, properties), ...); },
               ReportTable<Report>::fields);
    return properties;
}

// The enumerators' words, by their numbers.
template <class Enum>
std::vector<std::string> words_of() {
    std::vector<std::string> words;
    std::set<std::string> seen = {std::string(to_string(Enum{std::numeric_limits<std::uint8_t>::max()}))};
    for (std::underlying_type_t<Enum> number = 0; number < std::numeric_limits<std::uint8_t>::max();
         ++number) {
        const std::string word(to_string(Enum{number}));
        if (seen.insert(word).second) words.push_back(word);
    }
    return words;
}

template <class Value>
nlohmann::ordered_json Schema<Value>::schema() {
    if constexpr (HasTable<Value>)
        return properties_of<Value>().schema();
    else if constexpr (std::is_enum_v<Value>)
        return {{"enum", words_of<Value>()}};
    else if constexpr (std::same_as<Value, bool>)
        return {{"type", "boolean"}};
    else if constexpr (std::same_as<Value, std::string>)
        return {{"type", "string"}};
    else if constexpr (std::is_floating_point_v<Value>)
        return {{"type", "number"}, {"minimum", 0}};
    else {
        static_assert(std::integral<Value>, "a type of a report's member without a schema");
        return reference("common", "count");
    }
}

template <class Value>
nlohmann::ordered_json list_schema() {
    return {{"type", "array"}, {"items", Schema<Value>::schema()}};
}

template <class Value>
struct Schema<std::vector<Value>> {
    static nlohmann::ordered_json schema() {
        if constexpr (HasListName<Value>)
            return reference("reports", ReportTable<Value>::list);
        else
            return list_schema<Value>();
    }
};

}  // namespace attnsmith::problem
