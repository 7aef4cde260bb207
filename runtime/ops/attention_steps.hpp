// What op attention and op mla have in common: their tensors, and the order of their kernels.
#pragma once

#include <array>
#include <cstdint>

#include "ops/op.hpp"

namespace attnsmith::ops {

inline constexpr std::array kAttentionSteps = {Role::widen, Role::attention, Role::merge_splits};

problem::BoundShape check_attention(const problem::Problem& problem, const Operands& operands);
void check_attention_workspace(const problem::Problem& problem, void* data, std::int64_t bytes,
                               const Operands& operands);
InvalidRequest attention_too_large(const TooLarge& launch);

// The traits of an op that binds AttentionTensors.
constexpr OpTraits attention_op(const problem::OpRequest& request) {
    return {.request = &request,
            .tensors = "AttentionTensors",
            .tensors_of = AttentionTensors::kOp,
            .check_tensors = check_attention,
            .check_workspace = check_attention_workspace,
            .steps = kAttentionSteps,
            .main = Role::attention,
            .divides_keys = true,
            .has_status = true,
            .too_large = attention_too_large};
}

}  // namespace attnsmith::ops
