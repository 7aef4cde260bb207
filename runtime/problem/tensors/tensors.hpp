// Checks what a caller binds against the problem it was planned for. Pure: no device is touched.
#pragma once

#include <cstdint>
#include <variant>

#include "attnsmith/batch.hpp"
#include "problem/request/problem.hpp"
#include "problem/tensors/bound_shape.hpp"

namespace attnsmith::problem {

// Throws InvalidRequest naming the tensor ("k.strides[2]", "batch.kv_lens", ...), what it has and what is
// accepted.
BoundShape check_tensors(const Problem& problem, const AttentionTensors& tensors, const Batch& batch);

// Likewise, of op merge ("o_states[3].shape[0]"): one sequence whose queries are the tokens.
BoundShape check_tensors(const Problem& problem, const MergeTensors& tensors);

// Likewise, of op append ("k_cache.strides[1]").
BoundShape check_tensors(const Problem& problem, const AppendTensors& tensors, const Batch& batch);

// What a caller binds, as its op takes it. The tensors outlive it.
struct AttentionOperands {
    const AttentionTensors& tensors;
    const Batch& batch;
};
struct MergeOperands {
    const MergeTensors& tensors;
};
struct AppendOperands {
    const AppendTensors& tensors;
    const Batch& batch;
};
using Operands = std::variant<AttentionOperands, MergeOperands, AppendOperands>;

// As check_tensors(); throws InvalidRequest, too, for operands of another op than the problem's.
BoundShape check_operands(const Problem& problem, const Operands& operands);

// Throws InvalidRequest naming `workspace.data` where its first `bytes` are memory of one of the tensors.
void check_workspace(const Problem& problem, void* data, std::int64_t bytes, const AttentionTensors& tensors,
                     const Batch& batch);
void check_workspace(const Problem& problem, void* data, std::int64_t bytes, const AppendTensors& tensors,
                     const Batch& batch);

}  // namespace attnsmith::problem
