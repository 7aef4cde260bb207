// The kernels that planning could choose, whatever the lengths.
#pragma once

#include <span>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "planner/plan.hpp"

namespace attnsmith::engine {

// Each once, in order. What no kernel serves on an SM goes to `refused`. Throws InvalidRequest.
std::vector<families::KernelConfig> needed_kernels(std::span<const AttentionSpec> specs,
                                                   std::span<const int> sms,
                                                   const families::TuningTable& tuning,
                                                   std::vector<PrewarmRefusal>& refused);

}  // namespace attnsmith::engine
