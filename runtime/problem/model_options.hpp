// What a config.json leaves open, by the words of a request.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "attnsmith/spec.hpp"

namespace attnsmith::problem {

// The fields of a request that a model's options have too; tensor_parallel is theirs alone.
std::vector<std::string_view> model_request_fields();

// A request with what the options say and nothing else; the dtype only where they have one.
AttentionRequest request_of(const ModelOptions& options);

// Throws InvalidRequest naming a field that is unknown, or whose value is of another type.
ModelOptions model_options_from_json(const nlohmann::json& object);

}  // namespace attnsmith::problem
