// The shared memory of the mma attention kernel, in bytes. The planner, the launch and the kernel take it
// from here.
#pragma once

#include "abi/attention_storage.h"

namespace attnsmith::abi {

// A power of two up to 64 that divides head_dim: the columns of one swizzled panel. Tiles are stored panel by
// panel, [panel][row][columns], so that any head_dim is free of bank conflicts without being rounded up to a
// power of two.
ATTNSMITH_HOST_DEVICE constexpr int32 panel_columns(int32 head_dim) {
    return head_dim % 64 == 0 ? 64 : head_dim % 32 == 0 ? 32 : 16;
}

struct MmaShape {
    int32 head_dim_qk, head_dim_vo;
    int32 tile_q, tile_kv;
    int32 stages;
    int32 warps_q, warps_kv;
    bool paged;
    StorageBytes bytes;
};

// Where a key of a paged cache lies: its element offsets in k and in v.
inline constexpr int32 kMmaKeyOffsetBytes = 2 * int32(sizeof(int64));

struct MmaLayout {
    int32 q;     // tile_q rows of q, then of o
    int32 k, v;  // `stages` tiles each
    int32 k_stage, v_stage;
    int32 key_offsets;  // paged: for (stages + 2) tiles, where each key lies
    int32 partial_o;    // warps_kv > 1: each warp's o in fp32, over k and v once these are done with
    int32 partial_ml;   //               and its row maxima and sums
    int32 total;
};

// Floats from one row of partial_o to the next; the padding spreads rows over the banks.
ATTNSMITH_HOST_DEVICE constexpr int32 mma_partial_row(int32 head_dim_vo) {
    return padded_head_dim(head_dim_vo) + 8;
}

// Tiles whose keys are looked up and not yet loaded, or being loaded.
ATTNSMITH_HOST_DEVICE constexpr int32 mma_offset_tiles(int32 stages) { return stages + 2; }

ATTNSMITH_HOST_DEVICE constexpr MmaLayout mma_layout(const MmaShape& shape) {
    const int32 qk = padded_head_dim(shape.head_dim_qk), vo = padded_head_dim(shape.head_dim_vo);
    const int32 q_row = qk * shape.bytes.query, o_row = vo * shape.bytes.output;
    MmaLayout s{};
    s.q = 0;
    s.k_stage = shape.tile_kv * qk * shape.bytes.key_value;
    s.v_stage = shape.tile_kv * vo * shape.bytes.key_value;
    s.k = shape.tile_q * (q_row > o_row ? q_row : o_row);
    s.v = s.k + shape.stages * s.k_stage;
    s.key_offsets = s.v + shape.stages * s.v_stage;
    const int32 offset_bytes = mma_offset_tiles(shape.stages) * shape.tile_kv * kMmaKeyOffsetBytes;
    const int32 pipeline_end = s.key_offsets + (shape.paged ? offset_bytes : 0);
    const int32 partial_rows = shape.warps_kv * shape.tile_q;
    s.partial_o = s.k;
    s.partial_ml = s.partial_o + partial_rows * mma_partial_row(shape.head_dim_vo) * int32(sizeof(float));
    const int32 join_end = s.partial_ml + partial_rows * 2 * int32(sizeof(float));
    s.total = shape.warps_kv > 1 && join_end > pipeline_end ? join_end : pipeline_end;
    return s;
}

}  // namespace attnsmith::abi
