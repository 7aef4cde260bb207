// A case of op merge on the GPU, by description, and the fp64 merge that it is judged by.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "check/case.hpp"
#include "check/run_case.hpp"

namespace attnsmith::check {

// The states of one row: o is [state][head_dim], lse [state].
struct MergeRows {
    DType dtype = DType::bf16;
    std::int64_t head_dim = 0;
    std::vector<std::vector<double>> o;
    std::vector<double> lse;
};

struct MergedRow {
    std::vector<double> o;
    std::vector<double> low;  // by a plain computation in the dtype: weights and sums rounded to it
    double lse = 0;
};

// sum_s w_s o_s / sum_s w_s with w_s = exp(lse_s - max lse). States whose lse is -infinity are left out.
MergedRow reference_merge(const MergeRows& row);

// The log-sum-exps of a case's states.
enum class MergeLse : std::uint8_t {
    near,    // N(0, 2): every state counts
    large,   // near +-1e4, apart by units
    gaps,    // as near, but -inf in a third of the rows of each state, whose o is then NaN
    no_keys  // -inf throughout, with o NaN
};

struct MergeCase {
    std::string group, name;
    AttentionSpec spec;  // op merge
    std::int64_t tokens = 1;
    int states = 2;
    MergeLse lse = MergeLse::near;
    // Elements added to each stride, a different multiple to each tensor's; NaN lies in the gaps.
    std::int64_t pad = 0;
    std::int64_t base = 0;           // 16-bit elements between an aligned address and each o's first element
    bool heads_first = false;        // [head][token][...] in memory
    std::int64_t lse_stride = 1;     // between heads (tokens, with heads_first) of lse
    std::optional<int> in_place{};   // the state whose tensors o and lse are
    std::optional<int> nan_state{};  // a state one of whose lse is NaN: that row is NaN, no other
    int launches = 2;                // all must give the same bits

    std::string full_name() const { return group + "/" + name; }
    std::string describe() const;
};

// Uploads fresh random states with NaN in all gaps, launches, and checks: values, every byte outside of the
// outputs, the inputs, repeated launches bit for bit, and that the status is clear. Never throws for a wrong
// result.
CaseResult run_merge(Runtime& runtime, const MergeCase& test, const RunOptions& options);

}  // namespace attnsmith::check
