// The fields of a request, as one table. JSON, its normalised output, the C structs, hashes, the command
// line's flags and their help all come from it, so a word means the same everywhere.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "attnsmith/spec.hpp"
#include "problem/request/request_field.hpp"

namespace attnsmith::problem {

// In the order of the normalised JSON. "op" comes first.
std::span<const RequestField> request_fields();

// Whether a field says anything of what the op computes. What does not is not in the normalised JSON.
bool counts(std::string_view field, Op op);
// The same of a request: of op append, fields of latents count with a head_dim_ckv, and then those of heads
// do not.
bool counts(std::string_view field, const AttentionSpec& spec);
// The field that says the head dimension of an op's request, where it has two: the others follow from it.
const char* leading_head_dim(Op op);
// Whether an AttentionSpec has it: it is neither a size nor the machine.
bool is_of_spec(const RequestField& field);
// Whether a request without the field has no value for it, as for a window or a softcap.
bool is_absent_by_default(const RequestField& field);
// Equal for equal specs, and seldom for others.
std::size_t hash_of(const AttentionSpec& spec);
// Throws InvalidRequest for the first field that does not count for the request's op and is not at its
// default.
void refuse_other_fields(const AttentionRequest& request);
// RequestField::check of every field that counts.
void check_each_field(AttentionRequest& request);

// One line, no full stop; of `op` what each op computes.
std::string help_of(const RequestField& field);

// Null when there is no such field.
const RequestField* find_field(std::string_view name);

// The JSON value of a flag's text, e.g. "16" -> 16. Text that is no value of the field's type stays a string,
// which request_from_json refuses naming the field. "" is true for a boolean, so that --lse alone works; "on"
// and "off" are true and false.
nlohmann::json flag_value(const RequestField& field, std::string_view text);
// The same of a field that a program chooses, whose text may be a list, "16,8" -> [16, 8].
nlohmann::json flag_values(const RequestField& field, std::string_view text);

// What parse_request does after the text is read: fields {"op": ..., ...} -> validated, normalised request.
AttentionRequest request_from_json(const nlohmann::json& object);

}  // namespace attnsmith::problem
