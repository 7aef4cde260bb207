#include "families/work.hpp"

#include <algorithm>

#include "families/key_bounds.hpp"

namespace attnsmith::families {

HeadWork head_work(const problem::Problem& problem, std::int64_t max_q_len, std::int64_t kv_len) {
    const std::int64_t q_len = std::max<std::int64_t>(1, max_q_len);
    const KeyWork seen = key_work(bounds_of(problem.spec), q_len, kv_len);
    return {.group = problem.group_size(), .q_len = q_len, .keys = seen.keys, .bounds = seen.sides};
}

}  // namespace attnsmith::families
