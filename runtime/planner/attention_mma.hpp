// The mma family's candidates: which tiles and stages its kernels have on a compute capability.
#pragma once

#include <vector>

#include "attnsmith/error.hpp"
#include "planner/device_traits.hpp"
#include "planner/kernel_config.hpp"
#include "problem/problem.hpp"

namespace attnsmith::planner {

// One kernel for each query tile that fits, smallest tile first. What was refused or outranked goes to
// `rejected`.
std::vector<KernelConfig> attention_mma_kernels(const AttentionSpec& spec, const DeviceTraits& device,
                                                std::vector<Refusal>& rejected);

// Registers that a thread of the kernel is expected to need, without spills.
int attention_mma_registers(const KernelConfig& kernel);

}  // namespace attnsmith::planner
