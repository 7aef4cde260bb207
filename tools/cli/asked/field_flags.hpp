// Flags that are fields of a request.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/asked/field_help.hpp"
#include "cli/program/command.hpp"
#include "problem/request/request_fields.hpp"

namespace attnsmith::cli {

// `lists`: whether the words that a program chooses take several values.
void add_field(Command& command, const problem::RequestField& field, const std::string& group,
               FieldSource source, bool lists = false, const AttentionRequest& defaults = {});
// The fields whose flags were given, in the table's order.
std::vector<const problem::RequestField*> given_fields(const Command& command);
// REQUIRES: the field's flag was given.
nlohmann::json value_of(const Command& command, const problem::RequestField& field);

bool is_of_device(const problem::RequestField& field);
// Throws BadUsage for the flag of a field that is not accepted beside --`source`.
void refuse_flags_beside(const Command& command, const char* source,
                         bool (*accepted)(const problem::RequestField&));

// --sm alone.
void add_sm_flag(Command& command);
std::vector<int> read_sms(const Command& command);
// Warns of suffixes of --sm, or of a request's sm, that say nothing.
void warn_of_sms(const nlohmann::json& value);

}  // namespace attnsmith::cli
