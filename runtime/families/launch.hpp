// How a launch is laid out, beyond what one family knows.
#pragma once

#include <cstdint>

#include "families/split.hpp"
#include "families/traits.hpp"
#include "families/workspace.hpp"
#include "problem/ceil_div.hpp"
#include "problem/request/problem.hpp"
#include "problem/tensors/bound_shape.hpp"

namespace attnsmith::families {

// Rows of what is found over a part of the keys, where these are divided.
struct PartialRows {
    std::int64_t rows = 0;  // of each chunk, or of all shares
    std::int64_t room = 0;  // that the workspace is to have, for these bounds and any smaller ones
    std::int64_t share_places = 0, share_rows = 0;  // a share's places, and rows of each
};

// What the kernels of a plan are launched for.
struct LaunchContext {
    const problem::Problem& problem;
    const problem::BoundShape& shape;
    const DeviceTraits& device;
    Split split{};
    PartialRows partial{};
    WorkspaceLayout workspace{};
};

// Asks for the partial results of a launch that divides keys.
inline void add_partial_results(const LaunchContext& context, WorkspaceLayout& workspace) {
    const std::int64_t rows = context.partial.room;
    if (rows == 0) return;
    workspace.add(Region::partial_o, rows * problem::value_dim(context.problem.spec) * 4);
    workspace.add(Region::partial_ml, rows * 8);
}

// What a kernel's launch takes.
struct Extent {
    std::int64_t ctas = 0;   // of the grid's x; 0: nothing to do
    std::int64_t items = 0;  // what the CTAs count in 32 bits: CTAs, or what persistent ones go through
    std::int64_t kv_head_shares = 1;  // parts of a group that are KV heads of their own to the kernel

    bool operator==(const Extent&) const = default;
};

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
