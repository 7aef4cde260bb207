#include "families/work.hpp"

#include <algorithm>

#include "problem/request/key_bounds.hpp"

namespace attnsmith::families {

HeadWork head_work(const problem::Problem& problem, std::int64_t max_q_len, std::int64_t kv_len) {
    const problem::KeyBounds bounds = problem::bounds_of(problem.spec);
    const std::int64_t q_len = std::max<std::int64_t>(1, max_q_len);
    std::int64_t keys = kv_len;
    if (problem.spec.mask == Mask::causal) keys = std::max<std::int64_t>(1, keys - q_len / 2);
    if (bounds.count() == 2)
        keys = std::min(keys, *bounds.left + *bounds.right + 1 + std::min<std::int64_t>(q_len, 64));
    return {.group = problem.group_size(),
            .q_len = q_len,
            .keys = std::max<std::int64_t>(1, keys),
            .bounds = bounds.count()};
}

}  // namespace attnsmith::families
