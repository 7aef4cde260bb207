// The ops that are built, as one table. What planning makes of an op is a column that stands in
// planner/plan.cpp, since requests know nothing of kernels.
#pragma once

#include <span>
#include <string_view>

#include "problem/request/problem.hpp"
#include "problem/tensors/tensors.hpp"

namespace attnsmith::problem {

struct OpTraits {
    Op op;
    // The fields of a request that count; empty: all that are not another op's alone. Of an op without
    // head_dim_qk, head_dim is head_dim_vo, and of one without either there is none.
    std::span<const std::string_view> fields;
    // Those of them that JSON has to have, besides head_dim and q_heads.
    std::span<const std::string_view> required;
    // Fills in defaults and checks what no field's row can say by itself.
    void (*validate)(Problem& problem);
    const char* tensors;  // what a caller binds, as messages call it
    bool (*takes)(const Operands& operands);
    // REQUIRES: takes(operands).
    BoundShape (*check_tensors)(const Problem& problem, const Operands& operands);
};

// Null where the op is not supported.
const OpTraits* find_op(Op op);
// Throws Unsupported where the op is not supported.
const OpTraits& op_traits(Op op);

// The field that says the head dimension of an op's request, where it has two: the others follow from it.
const char* leading_head_dim(Op op);

}  // namespace attnsmith::problem
