// All kernels that planning could choose for requests, each once: what is compiled ahead, and explained.
#pragma once

#include <span>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "planner/kernel_config.hpp"
#include "planner/tuning.hpp"

namespace attnsmith::engine {

// For every spec on every SM; what no kernel serves goes to `refused`. Throws InvalidRequest.
std::vector<planner::KernelConfig> kernels_of(std::span<const AttentionSpec> specs, std::span<const int> sms,
                                              const planner::TuningTable& tuning,
                                              std::vector<PrewarmRefusal>& refused);

}  // namespace attnsmith::engine
