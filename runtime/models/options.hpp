// What a config.json leaves open, by the words of a request.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "attnsmith/spec.hpp"
#include "problem/request/request_fields.hpp"

namespace attnsmith::problem {

// Where the keys are kept that a model's decode reads, unless the options say it.
inline constexpr KvStorage kModelKv = KvStorage::paged;

// Whether a field of a request is a model's option, too.
bool is_model_option(const RequestField& field);
// All of those; tensor_parallel and strict are a model's alone.
std::vector<std::string_view> model_request_fields();

// A request with what the options say and nothing else; the dtype only where they have one.
AttentionRequest request_of(const ModelOptions& options);

// Throws InvalidRequest naming an option of appends where `slots`, which asks for them, is absent.
void check_append_options(const ModelOptions& options);

// Throws InvalidRequest naming a field that is unknown, or whose value is of another type.
ModelOptions model_options_from_json(const nlohmann::json& object);

}  // namespace attnsmith::problem
