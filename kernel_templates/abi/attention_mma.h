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
    bool wide;    // warps divide V's columns: attention/mma/wide_kernel.cuh
    bool latent;  // q has columns that meet V's as well
    bool paged, absolute_cuts;
    int32 scale_blocks;  // scales of a head of a token, or none
    StorageBytes bytes;
};

// Of a kernel's constants, or of the Config that states them in its source.
template <class Constants>
ATTNSMITH_HOST_DEVICE constexpr MmaShape mma_shape(const Constants& of, const StorageBytes& bytes) {
    return {.head_dim_qk = of.head_dim_qk,
            .head_dim_vo = of.head_dim_vo,
            .tile_q = of.tile_q,
            .tile_kv = of.tile_kv,
            .stages = of.stages,
            .warps_q = of.warps_q,
            .warps_kv = of.warps_kv,
            .wide = of.wide,
            .latent = of.latent,
            .paged = of.paged,
            .absolute_cuts = of.absolute_cuts,
            .scale_blocks = of.scale_blocks,
            .bytes = bytes};
}

// Weights of a key, which has as many for P V as its value has scales.
ATTNSMITH_HOST_DEVICE constexpr int32 mma_weight_blocks(bool latent, int32 scale_blocks) {
    return latent && scale_blocks > 1 ? scale_blocks : 1;
}

// Columns of V that each of so many warps has: a multiple of 16.
ATTNSMITH_HOST_DEVICE constexpr int32 wide_columns(int32 head_dim_vo, int32 warps) {
    return (padded_head_dim(head_dim_vo) / 16 + warps - 1) / warps * 16;
}

// Whether what was found before rows' last cuts is kept in registers: of wide kernels, whose warps have few
// columns and whose tiles of 16 bits leave no shared memory; what is widened takes these registers, and tiles
// of 8 bits half of the memory.
ATTNSMITH_HOST_DEVICE constexpr bool mma_states_in_registers(bool wide, const StorageBytes& bytes) {
    return wide && bytes.key_value > 1;
}

struct MmaLayout {
    int32 latent_q, q;  // tile_q rows of q, then of o where warps have whole rows
    KeyValueRing ring;
    WarpPartials partials;  // warps_kv > 1: over k and v once these are done with
    int32 weights, slices;  // wide: P, and a float or two a row of each of its slices of keys
    int32 state;            // absolute_cuts: what was found before the last cut: O, a maximum and a sum
    int32 share;            // a ShareState
    int32 row_factors;      // with keys of 8 bits: what each row of q was divided by, in fp32; else 0
    int32 work;             // wide and absolute_cuts: the tile at hand; else 0
    int32 total;
};

ATTNSMITH_HOST_DEVICE constexpr MmaLayout mma_layout(const MmaShape& shape) {
    const int32 q_row = padded_head_dim(shape.head_dim_qk) * shape.bytes.query;
    const int32 o_row = padded_head_dim(shape.head_dim_vo) * shape.bytes.output;
    MmaLayout s{};
    s.latent_q = 0;
    s.q = shape.latent ? shape.tile_q * padded_head_dim(shape.head_dim_vo) * shape.bytes.query : 0;
    s.ring = key_value_ring(s.q + shape.tile_q * (q_row > o_row || shape.wide ? q_row : o_row),
                            {.head_dim_qk = shape.head_dim_qk,
                             .head_dim_vo = shape.head_dim_vo,
                             .tile_kv = shape.tile_kv,
                             .stages = shape.stages,
                             .paged = shape.paged,
                             .key_bytes = shape.latent ? shape.bytes.position : shape.bytes.key_value,
                             .value_bytes = shape.bytes.key_value,
                             .scales = token_scales(shape.latent, shape.scale_blocks)});
    s.partials = warp_partials(s.ring.k, shape.warps_kv * shape.tile_q, shape.head_dim_vo);
    s.weights = (s.ring.end + 127) / 128 * 128;
    s.slices = s.weights + mma_weight_blocks(shape.latent, shape.scale_blocks) * shape.tile_q *
                               shape.tile_kv * shape.bytes.query;
    // With scales of tokens each row has its largest weight beside its largest logit.
    const int32 of_slice = (shape.scale_blocks > 0 ? 2 : 1) * int32(sizeof(float));
    if (shape.wide)
        s.state = s.slices + shape.warps_kv * shape.tile_q * of_slice;
    else
        s.state = shape.warps_kv > 1 && s.partials.end > s.ring.end ? s.partials.end : s.ring.end;
    const bool has_states = shape.absolute_cuts && !mma_states_in_registers(shape.wide, shape.bytes);
    // Each warp of a wide kernel has the maxima and sums of all rows.
    const int32 warps = shape.warps_q * shape.warps_kv;
    const int32 state_row = (shape.wide ? warps * (wide_columns(shape.head_dim_vo, warps) + 2)
                                        : padded_head_dim(shape.head_dim_vo) + 2) *
                            int32(sizeof(float));
    s.share = share_state(s.state + (has_states ? shape.tile_q * state_row : 0));
    s.total = s.share + int32(sizeof(ShareState));
    if (shape.bytes.key_value == 1) {
        s.row_factors = s.total;
        s.total += shape.tile_q * int32(sizeof(float));
    }
    if (shape.absolute_cuts && shape.wide) {
        s.work = s.total;
        s.total += kTileWorkBytes;
    }
    return s;
}

}  // namespace attnsmith::abi
