// Shared memory of kernels that load K and V with cp.async: a ring of tiles, and behind the last of them what
// warps that divided the keys have to join. Offsets are in bytes.
#pragma once

#include "abi/attention_storage.h"

namespace attnsmith::abi {

// A power of two up to 64 that divides head_dim: the columns of one swizzled panel. Tiles are stored panel by
// panel, [panel][row][columns], so that any head_dim is free of bank conflicts without being rounded up to a
// power of two.
ATTNSMITH_HOST_DEVICE constexpr int32 panel_columns(int32 head_dim) {
    return head_dim % 64 == 0 ? 64 : head_dim % 32 == 0 ? 32 : 16;
}

struct KeyValueRingShape {
    int32 head_dim_qk, head_dim_vo;
    int32 tile_kv;
    int32 stages;
    bool paged;
    int32 key_bytes, value_bytes;  // of an element
    int32 scales;                  // that a key has of its own, and its value
};

// Scales that a key has with its value where a head of a token has so many: one each, or, where the value is
// the key, those of its blocks of columns.
ATTNSMITH_HOST_DEVICE constexpr int32 token_scales(bool latent, int32 scale_blocks) {
    return latent || scale_blocks == 0 ? scale_blocks : 2;
}

struct KeyValueRing {
    int32 k, v;  // `stages` tiles each
    int32 k_stage, v_stage;
    int32 key_offsets;  // paged: where the keys of some tiles lie
    int32 scales;       // of the keys of some tiles, in fp32: [tile][scale][key]
    int32 end;
};

// Where a key of a paged cache lies: its element offsets in k and in v.
inline constexpr int32 kKeyOffsetBytes = 2 * int32(sizeof(int64));

// Tiles whose keys are looked up and not yet loaded, or being loaded.
ATTNSMITH_HOST_DEVICE constexpr int32 key_offset_tiles(int32 stages) { return stages + 2; }

// Tiles whose keys' scales are there: of the one at hand, which are read until it is done, and of those that
// are being loaded.
ATTNSMITH_HOST_DEVICE constexpr int32 scale_tiles(int32 stages) { return stages + 1; }

ATTNSMITH_HOST_DEVICE constexpr KeyValueRing key_value_ring(int32 start, const KeyValueRingShape& shape) {
    KeyValueRing ring{};
    ring.k_stage = shape.tile_kv * padded_head_dim(shape.head_dim_qk) * shape.key_bytes;
    ring.v_stage = shape.tile_kv * padded_head_dim(shape.head_dim_vo) * shape.value_bytes;
    ring.k = start;
    ring.v = ring.k + shape.stages * ring.k_stage;
    ring.key_offsets = ring.v + shape.stages * ring.v_stage;
    const int32 offset_bytes = key_offset_tiles(shape.stages) * shape.tile_kv * kKeyOffsetBytes;
    ring.scales = ring.key_offsets + (shape.paged ? offset_bytes : 0);
    ring.end = ring.scales + shape.scales * scale_tiles(shape.stages) * shape.tile_kv * int32(sizeof(float));
    return ring;
}

// Rows of O in fp32, not normalised, and their maxima and sums: of each warp, of all its rows.
struct WarpPartials {
    int32 o, ml;
    int32 end;
};

// Floats from one row of o to the next; the padding spreads rows over the banks.
ATTNSMITH_HOST_DEVICE constexpr int32 warp_partial_row(int32 head_dim_vo) {
    return padded_head_dim(head_dim_vo) + 8;
}

// `rows`: of all warps.
ATTNSMITH_HOST_DEVICE constexpr WarpPartials warp_partials(int32 start, int32 rows, int32 head_dim_vo) {
    WarpPartials partials{};
    partials.o = start;
    partials.ml = partials.o + rows * warp_partial_row(head_dim_vo) * int32(sizeof(float));
    partials.end = partials.ml + rows * 2 * int32(sizeof(float));
    return partials;
}

}  // namespace attnsmith::abi
