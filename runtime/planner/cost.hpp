// A model of a kernel's time, in clocks, good for ranking: arithmetic against memory, waves, and latency in
// between.
#pragma once

#include <cstdint>

#include "planner/device_traits.hpp"
#include "planner/kernel_config.hpp"

namespace attnsmith::planner {

struct Work {
    std::int64_t sequences_and_heads = 1;  // batch * kv_heads
    HeadWork of_each{};
};

// Time of the attention kernel and, with splits > 1, of the merge.
double estimated_clocks(const KernelConfig& kernel, const DeviceTraits& device, const Work& work,
                        std::int64_t splits);

}  // namespace attnsmith::planner
