// What a request has to know of its op. Each op says it in its folder of runtime/ops; since that knows
// requests, and requests know no op, the functions below are defined in the registry there.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "attnsmith/spec.hpp"

namespace attnsmith::problem {

struct OpRequest {
    std::string_view help;  // what it computes, in a few words; empty where its word says that
    // The fields that count. Of an op without head_dim_qk, head_dim is head_dim_vo, and of one without either
    // there is none.
    std::span<const std::string_view> fields;
    // Those of them that JSON has to have, besides head_dim and q_heads where the op has these.
    std::span<const std::string_view> required;
    // Those of them that have no default for the op, besides head dims and q_heads.
    std::span<const std::string_view> without_default;
    // Fills in defaults and checks what no field's row can say by itself.
    void (*validate)(AttentionSpec& spec, const PlanSizes& sizes);

    // An op whose requests have two forms. Null of others.
    // Whether one of `fields` counts for this spec.
    bool (*counts)(std::string_view field, const AttentionSpec& spec) = nullptr;
    // What tells this spec's form, for messages: " and head_dim_ckv", or nothing.
    std::string_view (*form)(const AttentionSpec& spec) = nullptr;
    // Checks the head dimensions of a JSON request of the form that has others than the fields say; false: it
    // is of the other form. Throws InvalidRequest.
    bool (*checks_head_dims)(const nlohmann::json& object) = nullptr;
};

// Null where the op is not supported.
const OpRequest* find_op(Op op);
// Throws Unsupported where the op is not supported.
const OpRequest& op_request(Op op);

}  // namespace attnsmith::problem
