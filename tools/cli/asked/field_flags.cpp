#include "cli/asked/field_flags.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/program/output.hpp"
#include "problem/request/sm_list.hpp"

namespace attnsmith::cli {

using problem::FieldType;
using problem::RequestField;

namespace {

std::string kind_of(const RequestField& field) {
    switch (field.type) {
        case FieldType::integer:
            return "N";
        case FieldType::number:
            return "X";
        case FieldType::sm_list:
            return "SM[,SM...]";
        case FieldType::word:
            return fmt::format("{}", fmt::join(field.words(), "|"));
        case FieldType::boolean:
            break;
    }
    return "";
}

}  // namespace

void add_field(Command& command, const RequestField& field, const std::string& group, FieldSource source,
               bool lists, const AttentionRequest& defaults) {
    const std::string help = problem::help_of(field);
    if (field.type == FieldType::boolean) {
        command.add_boolean(flag_of(field.name), help, group);
    } else {
        const bool is_list = lists && field.role == problem::FieldRole::choice;
        command.add_value(flag_of(field.name), kind_of(field) + (is_list ? "[,...]" : ""), help, group);
    }
    command.add_details([&field, source, defaults] { return field_details(field, source, defaults); });
}

std::vector<const RequestField*> given_fields(const Command& command) {
    std::vector<const RequestField*> fields;
    for (const RequestField& field : problem::request_fields()) {
        if (command.has(flag_of(field.name))) fields.push_back(&field);
    }
    return fields;
}

nlohmann::json value_of(const Command& command, const RequestField& field) {
    return problem::flag_values(field, command.text(flag_of(field.name)).value());
}

bool is_of_device(const RequestField& field) { return field.role == problem::FieldRole::device; }

void refuse_flags_beside(const Command& command, const char* source, bool (*accepted)(const RequestField&)) {
    for (const RequestField* field : given_fields(command)) {
        if (accepted(*field)) continue;
        throw BadUsage(fmt::format("--{} cannot be given beside --{}", flag_of(field->name), source));
    }
}

void add_sm_flag(Command& command) {
    add_field(command, *problem::find_field("sm"), "Options", FieldSource::request);
}

std::vector<int> read_sms(const Command& command) {
    if (!command.has("sm")) return {};
    const RequestField& field = *problem::find_field("sm");
    const nlohmann::json value = value_of(command, field);
    AttentionRequest request;
    field.set(request, field.name, value);
    warn_of_sms(value);
    return request.sm;
}

void warn_of_sms(const nlohmann::json& value) {
    for (const std::string& sentence : problem::unused_sm_suffixes(value)) print_warning(sentence);
}

}  // namespace attnsmith::cli
