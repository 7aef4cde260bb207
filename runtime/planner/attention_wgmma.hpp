// The wgmma family's candidates: which tiles and stages its persistent kernels have on a compute capability.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "abi/attention_wgmma.h"
#include "attnsmith/error.hpp"
#include "planner/device_traits.hpp"
#include "planner/kernel_config.hpp"
#include "planner/tuning.hpp"
#include "problem/problem.hpp"

namespace attnsmith::planner {

// Why no kernel of the family serves the spec on the SM.
std::optional<std::string> attention_wgmma_refusal(const AttentionSpec& spec, const DeviceTraits& device);

// Every kernel that is legal; none where the backend cannot serve the spec. What tuning chooses from.
std::vector<KernelConfig> attention_wgmma_candidates(const AttentionSpec& spec, const DeviceTraits& device);

struct TunedKernel {
    KernelConfig kernel{};
    TileSource source = TileSource::table;
    std::optional<int> max_rows{};  // packed query rows that it is for; absent: any
};

// Those of the kernel set, by rising max_rows: each is for what has more rows than the one before. With the
// first of the table's tiles for the spec and so many rows that is legal; sizes may share a tile. Why there
// is none, and why a tile is passed over, goes to `rejected`.
std::vector<TunedKernel> attention_wgmma_kernels(const AttentionSpec& spec, const DeviceTraits& device,
                                                 const TuningTable& tuning, std::vector<Refusal>& rejected);

// What the shared memory of a kernel of the family is laid out for.
abi::WgmmaShape wgmma_shape(const KernelConfig& kernel);

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
