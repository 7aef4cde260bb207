#include "problem/request/size_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "attnsmith/error.hpp"
#include "problem/limits.hpp"

namespace attnsmith::problem {

void check_range(std::string_view field, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value >= least && value <= most) return;
    throw InvalidRequest(std::string(field), std::to_string(value),
                         fmt::format("an integer from {} to {}", least, most));
}

namespace {

void check_query_rows(const PlanSizes& sizes, std::int64_t q_heads) {
    check_range("batch", sizes.batch, 1, kMaxBatch);
    check_range("q_len", sizes.q_len, 0, kMaxLength);
    check_range("kv_len", sizes.kv_len, 0, kMaxLength);
    const std::int64_t most = kMaxQueryRows / std::max<std::int64_t>(1, q_heads);  // an op may have no heads
    if (sizes.batch * sizes.q_len > most) {                                        // at most 2^50
        throw InvalidRequest("batch", std::to_string(sizes.batch),
                             fmt::format("at most {} with {} queries{}", most / sizes.q_len, sizes.q_len,
                                         q_heads > 0 ? fmt::format(" of {} heads", q_heads) : ""));
    }
}

void check_packed_queries(const PlanSizes& sizes, std::int64_t group_size) {
    if (sizes.q_len * group_size > kMaxPackedQueries) {  // at most 2^46: no overflow
        throw InvalidRequest("q_len", std::to_string(sizes.q_len),
                             fmt::format("at most {} with {} query heads to each KV head",
                                         kMaxPackedQueries / group_size, group_size));
    }
}

}  // namespace

void check_sizes(const AttentionSpec& spec, const PlanSizes& sizes) {
    check_query_rows(sizes, spec.q_heads);
    if (spec.kv_heads > 0) check_packed_queries(sizes, spec.q_heads / spec.kv_heads);
}

}  // namespace attnsmith::problem
