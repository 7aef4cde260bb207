// Attention in fp64 on the CPU: what the kernels are judged by. It shares no code with them and knows no
// memory layout: it sees queries, keys and values through accessors by sequence, token and head.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "attnsmith/spec.hpp"

namespace attnsmith::check {

struct SequenceLengths {
    std::int64_t q = 0;
    std::int64_t kv = 0;
};

// The head's elements (head_dim of them, contiguous) of one token: of the spec's dtype, or its kv_dtype where
// they are a key's or a value's. Null stands for a row of zeros.
using RowAccessor = std::function<const void*(std::int64_t sequence, std::int64_t token, std::int64_t head)>;

// The scale of one head of one token, of one block of its columns.
using ScaleAccessor =
    std::function<float(std::int64_t sequence, std::int64_t token, std::int64_t head, std::int64_t block)>;

struct ReferenceInput {
    AttentionSpec spec;  // head_dim_vo, kv_heads and scale may be left out, as in the API
    std::vector<SequenceLengths> sequences;
    RowAccessor q, k, v;
    std::vector<float> sinks;         // [q_heads] where spec.sink
    std::vector<float> alibi_slopes;  // [q_heads] where spec.alibi
    // What keys and values are multiplied by, [kv_heads]; empty: 1. One that is no number above 0 makes them
    // NaN.
    std::vector<float> k_scales{}, v_scales{};
    // What they are multiplied by where each token has scales of its own: each block of scale_block columns
    // by one. Any that is no number above 0 makes the token's key and value NaN. Null: the above.
    ScaleAccessor k_scale{}, v_scale{};
    std::int64_t scale_block = 0;  // 0: one for all columns
    // The head_dim_kpe components of a key that k does not have, of the spec's dtype and without a scale;
    // the first of them is component kpe_first of the key. Null: k has all.
    RowAccessor kpe{};
    std::int64_t kpe_first = 0;
};

// One query of one sequence, all its heads.
struct QueryRow {
    std::int64_t sequence = 0;
    std::int64_t query = 0;

    bool operator==(const QueryRow&) const = default;
};

// Keys first .. last that a query attends to; none when last < first.
struct KeyRange {
    std::int64_t first = 0;
    std::int64_t last = -1;

    std::int64_t count() const { return last < first ? 0 : last - first + 1; }
};

struct Reference {
    std::vector<double> out;  // [rows, q_heads, head_dim_vo]
    std::vector<double> low;  // the same by a plain computation in the spec's dtype: logits, probabilities
                              // and output rounded to it, the softmax in fp32, as an eager framework would
    std::vector<double> lse;  // [rows, q_heads], natural log, -infinity for a row that attends to nothing
};

DType output_dtype(const AttentionSpec& spec);
DType kv_dtype(const AttentionSpec& spec);
// The reference takes op mla as an attention with one KV head, whose values are the first columns of its
// keys.
std::int64_t head_dim_qk(const AttentionSpec& spec);
std::int64_t head_dim_vo(const AttentionSpec& spec);
std::int64_t kv_heads(const AttentionSpec& spec);
double scale_of(const AttentionSpec& spec);

// Bottom-right alignment: the last query sits at the last key.
KeyRange attended_keys(const AttentionSpec& spec, const SequenceLengths& lengths, std::int64_t query);

// Every query of every sequence, in order.
std::vector<QueryRow> all_rows(const std::vector<SequenceLengths>& sequences);

// Floating-point operations that compute_reference takes for these rows, about.
double reference_cost(const ReferenceInput& input, const std::vector<QueryRow>& rows);

// At most as many rows as cost `budget` operations: the first and last of each sequence, the rest at random.
std::vector<QueryRow> sample_rows(const ReferenceInput& input, double budget, std::uint64_t seed);

Reference compute_reference(const ReferenceInput& input, const std::vector<QueryRow>& rows, int threads = 0);

// Of one row, the weighted sums of the values' magnitudes, [q_heads, head_dim_vo]: what O would be if no
// value were negative. Rounding the weights changes O by at most so much times their roundoff.
std::vector<double> weighed_magnitudes(const ReferenceInput& input, const QueryRow& row);

}  // namespace attnsmith::check
