// A model of a kernel's time, in clocks, good for ranking: arithmetic against memory, waves, and latency in
// between.
#pragma once

#include <cstdint>

#include "planner/device_traits.hpp"
#include "planner/kernel_config.hpp"

namespace attnsmith::planner {

struct Work {
    std::int64_t sequences_and_heads = 1;  // batch * kv_heads
    std::int64_t rows = 1;                 // packed query rows of one: q_len * group
    std::int64_t keys = 1;
    std::int64_t group = 1;  // query heads to each KV head
};

// Time of the attention kernel and, with splits > 1, of the merge.
double estimated_clocks(const KernelConfig& kernel, const DeviceTraits& device, const Work& work,
                        std::int64_t splits);

}  // namespace attnsmith::planner
