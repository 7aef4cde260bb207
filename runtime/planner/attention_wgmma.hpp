// The wgmma family's candidates: which tiles and stages its persistent kernels have on a compute capability.
#pragma once

#include <cstdint>
#include <vector>

#include "attnsmith/error.hpp"
#include "planner/device_traits.hpp"
#include "planner/kernel_config.hpp"
#include "problem/problem.hpp"

namespace attnsmith::planner {

// Every kernel that is legal; none where the backend cannot serve the spec. What tuning chooses from.
std::vector<KernelConfig> attention_wgmma_candidates(const AttentionSpec& spec, const DeviceTraits& device);

// Those of the kernel set: the one that is best at the spec's head dims and mask. Why there is none goes to
// `rejected`.
std::vector<KernelConfig> attention_wgmma_kernels(const AttentionSpec& spec, const DeviceTraits& device,
                                                  std::vector<Refusal>& rejected);

// Keys of a TMA box: tile_kv, or what tiles and pages have as their greatest common divisor.
int wgmma_box_keys(const KernelConfig& kernel, std::int64_t page_size);

// Registers that a thread of a consumer warpgroup is expected to need.
int attention_wgmma_registers(const KernelConfig& kernel);

// Registers a thread that setmaxnreg gives to each role, in steps of eight. Together no more than what the
// CTA was launched with: the consumers would wait for the rest for ever.
struct WarpgroupRegisters {
    int producer, consumer;
};
WarpgroupRegisters warpgroup_registers(const KernelConfig& kernel);

}  // namespace attnsmith::planner
