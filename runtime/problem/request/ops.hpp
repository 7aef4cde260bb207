// The ops that are supported, as one table. What a caller binds and what planning makes of an op are columns
// in problem/tensors/op_tensors.cpp and planner/plan.cpp, since requests know nothing of tensors and kernels.
#pragma once

#include <span>
#include <string_view>

#include "attnsmith/spec.hpp"

namespace attnsmith::problem {

struct OpTraits {
    Op op;
    // The fields of a request that count; empty: all that are not another op's alone. Of an op without
    // head_dim_qk, head_dim is head_dim_vo, and of one without either there is none.
    std::span<const std::string_view> fields;
    // Those of them that JSON has to have, besides head_dim and q_heads.
    std::span<const std::string_view> required;
    // Fills in defaults and checks what no field's row can say by itself.
    void (*validate)(AttentionSpec& spec, const PlanSizes& sizes);
};

// Null where the op is not supported.
const OpTraits* find_op(Op op);
// Throws Unsupported where the op is not supported.
const OpTraits& op_traits(Op op);

}  // namespace attnsmith::problem
