// The shared memory of the attention kernel on CUDA cores, in bytes. The planner, the launch and the kernel
// take it from here.
#pragma once

#include "abi/attention_share.h"
#include "abi/key_value_ring.h"

namespace attnsmith::abi {

struct CudaCoreShape {
    int32 head_dim_qk, head_dim_vo;
    int32 rows;  // packed query rows of a warp
    int32 tile_kv;
    int32 stages;
    int32 warps_q, warps_kv;
    bool paged;
    StorageBytes bytes;
};

// Of a kernel's constants, or of the Config that states them in its source.
template <class Constants>
ATTNSMITH_HOST_DEVICE constexpr CudaCoreShape cuda_core_shape(const Constants& of,
                                                              const StorageBytes& bytes) {
    return {.head_dim_qk = of.head_dim_qk,
            .head_dim_vo = of.head_dim_vo,
            .rows = of.rows,
            .tile_kv = of.tile_kv,
            .stages = of.stages,
            .warps_q = of.warps_q,
            .warps_kv = of.warps_kv,
            .paged = of.paged,
            .bytes = bytes};
}

struct CudaCoreLayout {
    KeyValueRing ring;
    int32 weights;          // each warp's logits, then weights: [key][row], fp32
    WarpPartials partials;  // warps_kv > 1: over k and v once these are done with
    int32 share;            // a ShareState
    int32 total;
};

ATTNSMITH_HOST_DEVICE constexpr CudaCoreLayout cuda_core_layout(const CudaCoreShape& shape) {
    CudaCoreLayout s{};
    s.ring = key_value_ring(0, {.head_dim_qk = shape.head_dim_qk,
                                .head_dim_vo = shape.head_dim_vo,
                                .tile_kv = shape.tile_kv,
                                .stages = shape.stages,
                                .paged = shape.paged,
                                .key_bytes = shape.bytes.key_value,
                                .value_bytes = shape.bytes.key_value,
                                .scales = 0});
    s.weights = s.ring.end;
    const int32 weights_end = s.weights + shape.warps_q * shape.tile_kv * shape.rows * int32(sizeof(float));
    s.partials = warp_partials(s.ring.k, shape.warps_kv * shape.rows, shape.head_dim_vo);
    s.share = share_state(shape.warps_kv > 1 && s.partials.end > weights_end ? s.partials.end : weights_end);
    s.total = s.share + int32(sizeof(ShareState));
    return s;
}

}  // namespace attnsmith::abi
