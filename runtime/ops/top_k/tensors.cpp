#include "ops/top_k/tensors.hpp"

#include "problem/tensors/batch_tensors.hpp"
#include "problem/tensors/tensor_checks.hpp"

namespace attnsmith::ops::top_k {
namespace {

using namespace problem;

struct TopKChecker {
    explicit TopKChecker(const TopKTensors& tensors)
        : scores{"scores", tensors.scores},
          row_starts{"row_starts", tensors.row_starts},
          row_ends{"row_ends", tensors.row_ends},
          indices{"indices", tensors.indices} {}

    BoundShape check(const AttentionSpec& spec) const {
        check_present(scores, "[rows, columns]");
        check_matrix(scores, DType::fp32, {kAny, "rows"}, {kAny, "columns"});
        const Expected rows{scores.extent(0), "rows of scores"};
        for (const Named* bounds : {&row_starts, &row_ends})
            if (bounds->present()) check_vector(*bounds, spec.index_dtype, rows);
        check_present(indices, "[rows, k]");
        check_matrix(indices, DType::int32, rows, {kAny, "k"});
        check_output_elements(indices);
        for (const Named* input : inputs()) refuse_overlap(indices, *input);
        return {.batch = 1,
                .q_tokens = scores.extent(0),
                .max_q_len = scores.extent(0),
                .max_kv_len = scores.extent(1)};
    }

    void refuse_shared(const Named& scratch) const {
        for (const Named* input : inputs()) refuse_overlap(scratch, *input);
        refuse_overlap(scratch, indices);
    }

    const Named scores, row_starts, row_ends, indices;

  private:
    std::array<const Named*, 3> inputs() const { return {&scores, &row_starts, &row_ends}; }

    static void check_matrix(const Named& named, DType dtype, Expected rows, Expected columns) {
        check_dtype(named, dtype);
        check_shape(named, {rows, columns});
        check_inner_stride(named);
        check_memory(named, size_of(dtype));
    }
};

}  // namespace

BoundShape check_tensors(const Problem& problem, const Operands& operands) {
    const Batch& batch = operands.batch;
    BatchTensors(problem.spec, batch)
        .refuse_all(batch.max_q_len, batch.max_kv_len, "ops of attention; top_k has row_starts and row_ends");
    return TopKChecker(operands.as<TopKTensors>()).check(problem.spec);
}

void check_workspace(const Problem&, void* data, std::int64_t bytes, const Operands& operands) {
    TopKChecker(operands.as<TopKTensors>()).refuse_shared({"workspace.data", workspace_tensor(data, bytes)});
}

}  // namespace attnsmith::ops::top_k
