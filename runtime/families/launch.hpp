// How a launch is laid out, beyond what one family knows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "families/split.hpp"
#include "families/traits.hpp"
#include "problem/ceil_div.hpp"
#include "problem/request/problem.hpp"
#include "problem/tensors/bound_shape.hpp"

namespace attnsmith::families {

// A workspace holds the zeroed bytes, then the partial results and what was widened; offsets are in bytes
// from its start.
struct WorkspaceLayout {
    std::int64_t rows = 0;  // of the partial results: of each chunk's, or of all shares'
    std::int64_t share_places = 0, share_rows = 0;  // a share's places, and rows of each
    std::int64_t partial_o_offset = 0;
    std::int64_t partial_ml_offset = 0;
    std::int64_t widened_k_offset = 0, widened_v_offset = 0;  // as abi/widen_arguments.h has them
    std::int64_t bytes = 0;                                   // enough for any smaller bounds, too
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

// Tokens that the workspace has of each sequence whose keys are widened into it.
inline std::int64_t widened_tokens(const problem::BoundShape& shape) {
    return std::max<std::int64_t>(1, shape.max_kv_len);
}
// Rows that all sequences and KV heads have there.
inline std::int64_t widened_rows(const AttentionSpec& spec, const problem::BoundShape& shape) {
    return shape.batch * spec.kv_heads * widened_tokens(shape);
}

// Tiles of packed query rows for each KV head.
struct QueryTiles {
    std::int64_t all = 0;      // over all sequences, at most
    std::int64_t of_each = 0;  // of every sequence; 0: those of all sequences are packed
};

// Tiles of so many rows, where each token has `group` of them.
inline QueryTiles query_tiles(const problem::BoundShape& shape, std::int64_t group, std::int64_t tile_rows) {
    const std::int64_t most = problem::ceil_div(shape.max_q_len * group, tile_rows);
    const std::int64_t packed = shape.q_tokens * group / tile_rows + shape.batch;
    if (shape.batch * most <= packed) return {shape.batch * most, most};
    return {packed, 0};
}

// A CTA for each tile of so many packed rows, KV head and chunk.
inline Extent grid_of_tiles(const LaunchContext& context, std::int64_t tile_rows) {
    const problem::Problem& problem = context.problem;
    const std::int64_t tiles = query_tiles(context.shape, problem.group_size(), tile_rows).all;
    const std::int64_t ctas = tiles * problem.spec.kv_heads * context.split.chunks();
    return {.ctas = ctas, .items = ctas};
}

}  // namespace attnsmith::families
