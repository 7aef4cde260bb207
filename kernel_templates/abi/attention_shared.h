// The shared memory of the mma attention kernel, in bytes. The planner, the launch and the kernel take it
// from here.
#pragma once

#include "abi/integers.h"

namespace attnsmith::abi {

// A power of two up to 64 that divides head_dim: the columns of one swizzled panel. Tiles are stored panel by
// panel, [panel][row][columns], so that any head_dim is free of bank conflicts without being rounded up to a
// power of two.
ATTNSMITH_HOST_DEVICE constexpr int32 panel_columns(int32 head_dim) {
    return head_dim % 64 == 0 ? 64 : head_dim % 32 == 0 ? 32 : 16;
}

// tensor cores take 16 elements at a time: what is missing is filled with zeros on chip.
ATTNSMITH_HOST_DEVICE constexpr int32 padded_head_dim(int32 head_dim) { return (head_dim + 15) / 16 * 16; }

struct AttentionShape {
    int32 head_dim_qk, head_dim_vo;
    int32 tile_q, tile_kv;
    int32 stages;
    int32 warps_q, warps_kv;
    bool paged;
};

struct AttentionShared {
    int32 q;     // tile_q rows of q, then of o
    int32 k, v;  // `stages` tiles each
    int32 k_stage, v_stage;
    int32 row_offsets;  // paged: for (stages + 2) tiles, each key's element offsets in k and v
    int32 partial_o;    // warps_kv > 1: each warp's o in fp32, over k and v once these are done with
    int32 partial_ml;   //               and its row maxima and sums
    int32 total;
};

// Floats from one row of partial_o to the next; the padding spreads rows over the banks.
ATTNSMITH_HOST_DEVICE constexpr int32 partial_row(int32 head_dim_vo) {
    return padded_head_dim(head_dim_vo) + 8;
}

ATTNSMITH_HOST_DEVICE constexpr AttentionShared attention_shared(const AttentionShape& shape) {
    const int32 qk = padded_head_dim(shape.head_dim_qk), vo = padded_head_dim(shape.head_dim_vo);
    const int32 widest = qk > vo ? qk : vo;
    AttentionShared s{};
    s.q = 0;
    s.k_stage = shape.tile_kv * qk * 2;
    s.v_stage = shape.tile_kv * vo * 2;
    s.k = shape.tile_q * widest * 2;
    s.v = s.k + shape.stages * s.k_stage;
    s.row_offsets = s.v + shape.stages * s.v_stage;
    const int32 pipeline_end = s.row_offsets + (shape.paged ? (shape.stages + 2) * shape.tile_kv * 16 : 0);
    s.partial_o = s.k;
    s.partial_ml = s.partial_o + shape.warps_kv * shape.tile_q * partial_row(shape.head_dim_vo) * 4;
    const int32 combine_end = s.partial_ml + shape.warps_kv * shape.tile_q * 8;
    s.total = shape.warps_kv > 1 && combine_end > pipeline_end ? combine_end : pipeline_end;
    return s;
}

}  // namespace attnsmith::abi
