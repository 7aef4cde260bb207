// How much there is to do, for ranking kernels and laying out launches.
#pragma once

#include <cstdint>

#include "problem/request/problem.hpp"

namespace attnsmith::families {

// What a sequence has for a KV head to do.
struct HeadWork {
    std::int64_t group = 1;  // query heads to the KV head
    std::int64_t q_len = 1;
    std::int64_t keys = 1;  // that a query of average position sees
    int bounds = 0;         // on the keys by the mask: left, right. With each, other tokens see other keys

    std::int64_t rows() const { return q_len * group; }  // packed query rows
};

struct Work {
    std::int64_t sequences_and_heads = 1;  // batch * kv_heads
    HeadWork of_each{};
};

// Without queries, that of one query. REQUIRES: op attention or mla.
HeadWork head_work(const problem::Problem& problem, std::int64_t max_q_len, std::int64_t kv_len);

}  // namespace attnsmith::families
