#include "planner/merge_states.hpp"

#include <fmt/format.h>

#include <bit>

#include "planner/ceil_div.hpp"

namespace attnsmith::planner {
namespace {

constexpr int kWarps = 4;
// 1024 threads with four 16-byte loads under way each: twice what hides the latency of device memory.
constexpr int kCtasPerSm = 8;
constexpr int kElementsPerLane = 8;  // 16 bytes

// Lanes that share a row: a power of two, so that rows tile a warp.
int lanes_per_row(std::int64_t head_dim_vo) {
    return static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(head_dim_vo) / kElementsPerLane));
}

}  // namespace

KernelConfig merge_states_kernel(const AttentionSpec& spec, const DeviceTraits& device) {
    KernelConfig kernel;
    kernel.family = Family::merge_states;
    kernel.backend = Backend::cuda_core;
    kernel.sm = device.sm;
    kernel.target = fmt::format("sm_{}", device.sm);
    kernel.dtype = spec.dtype;
    kernel.head_dim_vo = static_cast<int>(spec.head_dim_vo);
    kernel.alignment = spec.alignment;
    kernel.tile_q = kWarps * 32 / lanes_per_row(spec.head_dim_vo);
    kernel.warps_q = kWarps;
    kernel.warps_kv = 1;
    kernel.ctas_per_sm = kCtasPerSm;
    return kernel;
}

Launch merge_states_launch(const KernelConfig& kernel, const AttentionSpec& spec,
                           const problem::BoundShape& shape) {
    Launch launch;
    launch.rows = shape.q_tokens * spec.q_heads;
    launch.merge_tiles = launch.merge_grid = ceil_div(launch.rows, kernel.tile_q);
    return launch;
}

}  // namespace attnsmith::planner
