// A table names the fields of a report: a struct that is printed as a JSON object. The JSON and its schema
// follow from the table, and a member that the table does not have fails to compile.
#pragma once

#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "problem/report/member_count.hpp"

namespace attnsmith::problem {

// What the type of a field does not say.
struct FieldNote {
    std::string_view about{};       // the field's description in the schema
    std::string_view definition{};  // of common.schema.json, by name: "sm", "key"
    bool may_be_left_out = false;   // from the JSON: where it is empty, 0 or absent
};

inline constexpr bool kLeftOutIfEmpty = true;

// A member, by its name in the JSON.
template <class Report, class Member>
struct MemberField {
    std::string_view name;
    Member Report::*member;
    FieldNote note;
};

// A value that follows from the report, and the members that are in the JSON as this value alone.
template <class Report, class Value, class... Members>
struct ComputedField {
    std::string_view name;
    Value (*compute)(const Report& report);
    FieldNote note;
    std::tuple<Members Report::*...> members;
};

// An object of fields of the same report: the summary of a prewarm.
template <class... Fields>
struct FieldGroup {
    std::string_view name;
    std::tuple<Fields...> fields;
};

// A member that is a report, or perhaps one, whose fields stand among those of this one.
template <class Report, class Member>
struct InlinedMember {
    Member Report::*member;
};

template <class Report, class Member>
constexpr auto field(std::string_view name, Member Report::*member, FieldNote note = {}) {
    return MemberField<Report, Member>{name, member, note};
}

template <class Report, class Value, class... Members>
constexpr auto computed(std::string_view name, Value (*compute)(const Report&), FieldNote note = {},
                        Members Report::*... members) {
    return ComputedField<Report, Value, Members...>{name, compute, note, {members...}};
}

template <class... Fields>
constexpr auto group(std::string_view name, Fields... fields) {
    return FieldGroup<Fields...>{name, {fields...}};
}

template <class Report, class Member>
constexpr auto inlined(Member Report::*member) {
    return InlinedMember<Report, Member>{member};
}

// The table of a report, as specialisations with
//   static constexpr auto fields = std::tuple(field("path", &CacheUnreadable::path), ...);
// A report that is a document has also the name of its schema, and what the schema says of it:
//   static constexpr std::string_view schema = "attnsmith.cache-ls/1", about = "What ... prints.";
// Where several reports share a schema, each says what it is of: variant = "A bundle.".
// One whose lists are a definition of reports.schema.json has that name:
//   static constexpr std::string_view list = "unreadable", about = "What could not be read.";
template <class Report>
struct ReportTable;

template <class Report>
concept HasTable = requires {
    ReportTable<Report>::fields;
};
template <class Report>
concept IsDocument = HasTable<Report> && requires {
    ReportTable<Report>::schema;
};
template <class Report>
concept HasListName = HasTable<Report> && requires {
    ReportTable<Report>::list;
};

// The members that a field is about, as a tuple of pointers.
template <class Report, class Member>
constexpr auto members_of(const MemberField<Report, Member>& field) {
    return std::tuple(field.member);
}
template <class Report, class Value, class... Members>
constexpr auto members_of(const ComputedField<Report, Value, Members...>& field) {
    return field.members;
}
template <class Report, class Member>
constexpr auto members_of(const InlinedMember<Report, Member>& field) {
    return std::tuple(field.member);
}
template <class... Fields>
constexpr auto members_of(const FieldGroup<Fields...>& group);

template <class... Fields>
constexpr auto members_of(const std::tuple<Fields...>& fields) {
    return std::apply([](const auto&... field) { return std::tuple_cat(members_of(field)...); }, fields);
}
template <class... Fields>
constexpr auto members_of(const FieldGroup<Fields...>& group) {
    return members_of(group.fields);
}

// How many pointers of the tuple are this one.
template <class... Pointers, class Pointer>
constexpr std::size_t count_of(const std::tuple<Pointers...>& pointers, Pointer pointer) {
    const auto is_same = [&](auto other) {
        if constexpr (std::is_same_v<decltype(other), Pointer>)
            return other == pointer;
        else
            return false;
    };
    return std::apply([&](auto... others) { return (std::size_t{0} + ... + is_same(others)); }, pointers);
}

// Whether the table names each member of the report, and none of them twice.
template <HasTable Report>
consteval bool names_every_member() {
    constexpr auto members = members_of(ReportTable<Report>::fields);
    constexpr bool once = std::apply(
        [&](auto... pointers) { return (true && ... && (count_of(members, pointers) == 1)); }, members);
    return once && std::tuple_size_v<decltype(members)> == member_count<Report>();
}

}  // namespace attnsmith::problem
