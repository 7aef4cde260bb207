// The shared memory of the mma attention kernel, in bytes. The planner, the launch and the kernel take it
// from here.
#pragma once

#include "abi/attention_share.h"
#include "abi/key_value_ring.h"

namespace attnsmith::abi {

struct MmaShape {
    int32 head_dim_qk, head_dim_vo;
    int32 tile_q, tile_kv;
    int32 stages;
    int32 warps_q, warps_kv;
    bool paged, absolute_cuts;
    StorageBytes bytes;
};

struct MmaLayout {
    int32 q;  // tile_q rows of q, then of o
    KeyValueRing ring;
    WarpPartials partials;  // warps_kv > 1: over k and v once these are done with
    int32 state;            // absolute_cuts: O of what was found before the last cut, a maximum and a sum
    int32 share;            // a ShareState
    int32 total;
};

ATTNSMITH_HOST_DEVICE constexpr MmaLayout mma_layout(const MmaShape& shape) {
    const int32 q_row = padded_head_dim(shape.head_dim_qk) * shape.bytes.query;
    const int32 o_row = padded_head_dim(shape.head_dim_vo) * shape.bytes.output;
    MmaLayout s{};
    s.q = 0;
    s.ring = key_value_ring(shape.tile_q * (q_row > o_row ? q_row : o_row),
                            {shape.head_dim_qk, shape.head_dim_vo, shape.tile_kv, shape.stages, shape.paged,
                             shape.bytes.key_value});
    s.partials = warp_partials(s.ring.k, shape.warps_kv * shape.tile_q, shape.head_dim_vo);
    s.state = shape.warps_kv > 1 && s.partials.end > s.ring.end ? s.partials.end : s.ring.end;
    const int32 state_row = padded_head_dim(shape.head_dim_vo) + 2;
    const int32 state_bytes = shape.tile_q * state_row * int32(sizeof(float));
    s.share = share_state(s.state + (shape.absolute_cuts ? state_bytes : 0));
    s.total = s.share + int32(sizeof(ShareState));
    return s;
}

}  // namespace attnsmith::abi
