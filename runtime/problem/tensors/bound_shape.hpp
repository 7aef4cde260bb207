// The sizes of what a caller binds.
#pragma once

#include <cstdint>

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

}  // namespace attnsmith::problem
