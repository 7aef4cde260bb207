// Planning: which kernels serve a problem on a device, with what tiles and what KV split, and why not the
// others. Pure functions: no GPU, no files, no clock. The same inputs give the same bytes of JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "attnsmith/error.hpp"
#include "planner/attention_wgmma.hpp"
#include "planner/device_traits.hpp"
#include "planner/kernel_config.hpp"
#include "planner/tuning.hpp"
#include "problem/problem.hpp"
#include "problem/tensors.hpp"

namespace attnsmith::planner {

// How the keys of a sequence are divided over CTAs. Chunks lie at absolute key positions, so which keys are
// reduced together depends on the plan alone.
struct SplitPlan {
    std::int64_t chunk = 0;   // keys, a multiple of tile_kv; 0: never split
    std::int64_t splits = 1;  // at the planned sizes
    bool operator==(const SplitPlan&) const = default;
};

struct Numerics {
    double atol = 0;
    double rtol = 0;
    bool operator==(const Numerics&) const = default;
};

struct Plan {
    problem::Problem problem{};
    DeviceTraits device{};
    std::optional<KernelConfig> attention{};     // absent of op merge
    TileSource tile_source = TileSource::model;  // of the attention's
    KernelConfig merge{};  // of op attention: launched where a launch's bounds reach beyond one chunk
    SplitPlan split{};
    Numerics numerics{};
    std::vector<Refusal> rejected{};

    bool operator==(const Plan&) const = default;
};

struct KernelSet {
    std::vector<KernelConfig> kernels{};  // each once
    std::vector<TunedKernel> wgmma{};     // which of them are for how many rows
    std::vector<Refusal> rejected{};
};

// Every kernel that a plan for this spec can name on this compute capability with this table, whatever the
// sizes and the SM count. Throws Unsupported with each candidate's reason when no kernel serves the spec. The
// spec is a validated one's.
KernelSet kernel_set(const AttentionSpec& spec, int sm, const TuningTable& tuning);

// Throws Unsupported.
Plan make_plan(const problem::Problem& problem, const DeviceTraits& device, const TuningTable& tuning);

// CTAs of a grid's x.
inline constexpr std::int64_t kMostCtas = (std::int64_t{1} << 31) - 1;

// The launch of a plan for tensors with given bounds.
struct Launch {
    std::int64_t kv_head_shares = 1;  // parts of a group that are KV heads of their own to the attention
    std::int64_t tiles = 0;           // query tiles of one of these over all sequences
    std::int64_t merge_tiles = 0;
    std::int64_t splits = 1;
    std::int64_t chunk = 0;           // as SplitPlan's, longer where there would be too many
    std::int64_t rows = 0;            // of each split's partial results
    std::int64_t items = 0;           // of the attention: a query tile, a KV head's part and a split each
    std::int64_t sequence_tiles = 0;  // of wgmma: of every sequence; 0: those of all sequences are packed
    // Of wgmma, see attention/wgmma_scheduler.cuh: what CTAs draw, how many of these are two items, and how
    // many streams the others are drawn from by turns.
    std::int64_t draws = 0, paired_draws = 0, mixed_streams = 0;
    std::int64_t grid = 0;  // its CTAs, in x: an item each, or as many as are resident; 0: nothing to do
    std::int64_t merge_grid = 0;
    std::int64_t partial_o_offset = 0;  // bytes, in the workspace
    std::int64_t partial_ml_offset = 0;
    std::int64_t workspace_bytes = 0;  // enough for any smaller bounds, too
};

// Any sizes: whether the items and the grids can be counted in 32 bits is for check_grid(), which throws
// InvalidRequest.
Launch launch_of(const Plan& plan, const problem::BoundShape& shape);
void check_grid(const Plan& plan, const Launch& launch);

}  // namespace attnsmith::planner
