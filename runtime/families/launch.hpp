// How a launch is laid out, beyond what one family knows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "families/traits.hpp"
#include "problem/ceil_div.hpp"
#include "problem/request/problem.hpp"
#include "problem/tensors/tensors.hpp"

namespace attnsmith::families {

// How the keys of every sequence are divided over CTAs in one launch. Chunks lie at absolute key positions.
struct Split {
    std::int64_t splits = 1;
    std::int64_t chunk = 0;  // keys; 0 where there is one split

    bool operator==(const Split&) const = default;
};

// A workspace holds the status bytes, then the partial results of splits; offsets are in bytes from its
// start.
struct WorkspaceLayout {
    std::int64_t rows = 0;  // of each split's partial results
    std::int64_t partial_o_offset = 0;
    std::int64_t partial_ml_offset = 0;
    std::int64_t bytes = 0;  // enough for any smaller bounds, too
};

// What the kernels of a plan are launched for.
struct LaunchContext {
    const problem::Problem& problem;
    const problem::BoundShape& shape;
    const DeviceTraits& device;
    Split split{};
    WorkspaceLayout workspace{};
};

// What a kernel's launch takes.
struct Extent {
    std::int64_t ctas = 0;   // of the grid's x; 0: nothing to do
    std::int64_t items = 0;  // what the CTAs count in 32 bits: CTAs, or what persistent ones go through
    std::int64_t kv_head_shares = 1;  // parts of a group that are KV heads of their own to the kernel

    bool operator==(const Extent&) const = default;
};

// Tiles of so many packed rows over all sequences, at most, where each token has `group` rows.
inline std::int64_t query_tiles(const problem::BoundShape& shape, std::int64_t group,
                                std::int64_t tile_rows) {
    const std::int64_t uniform = shape.batch * problem::ceil_div(shape.max_q_len * group, tile_rows);
    return std::min(uniform, shape.q_tokens * group / tile_rows + shape.batch);
}

// A CTA for each tile of so many packed rows, KV head and split.
inline Extent grid_of_tiles(const LaunchContext& context, std::int64_t tile_rows) {
    const problem::Problem& problem = context.problem;
    const std::int64_t tiles = query_tiles(context.shape, problem.group_size(), tile_rows);
    const std::int64_t ctas = tiles * problem.spec.kv_heads * context.split.splits;
    return {.ctas = ctas, .items = ctas};
}

}  // namespace attnsmith::families
