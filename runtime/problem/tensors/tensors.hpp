// Checks what a caller binds against the problem it was planned for. Pure: no device is touched.
#pragma once

#include <variant>

#include "attnsmith/batch.hpp"
#include "problem/request/problem.hpp"

namespace attnsmith::problem {

// The sizes that a launch needs, read off checked tensors.
struct BoundShape {
    std::int64_t batch = 0;
    std::int64_t q_tokens =
        0;  // queries of all sequences: batch * max_q_len when dense, rows of q when ragged
    std::int64_t max_q_len = 0;   // bound of one sequence, at most what the tensors hold
    std::int64_t max_kv_len = 0;  // likewise
    std::int64_t kv_tokens = 0;   // ragged: rows of k; dense: kv_len of one sequence; paged: 0
    std::int64_t pages = 0;       // paged: how many pages k and v have
    std::int64_t table_rows = 0;  // paged, padded: rows of page_table
    std::int64_t page_list = 0;   // paged, compressed: entries of page_indices; padded: columns of page_table
};

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

// Whether two tensors can share an element; false only where it is certain that they do not.
bool may_overlap(const Tensor& a, const Tensor& b);

}  // namespace attnsmith::problem
