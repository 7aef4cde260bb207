// What the wgmma attention kernel has beyond abi/attention_arguments.h: its TMA descriptors, and its shared
// memory in bytes, which the planner, the launch and the kernel take from here.
#pragma once

#include "abi/attention_arguments.h"
#include "abi/attention_cuts.h"
#include "abi/attention_share.h"
#include "abi/attention_storage.h"

namespace attnsmith::abi {

// A TMA descriptor as cuTensorMapEncodeTiled writes it: opaque, read by the copy engine from the kernel's
// parameters.
struct alignas(64) TensorMap {
    uint64 words[16];
};

// The word, counted from the status word, that counts draws; 0 between launches.
inline constexpr int32 kDrawCounter = 32;

// Rows of a consumer warpgroup.
inline constexpr int32 kWgmmaRows = 64;

// A panel's row: the widest swizzle. Tiles are stored panel by panel, [panel][row][kWgmmaPanelBytes]; what a
// panel has beyond the head dim is filled with zeros by the copy engine.
inline constexpr int32 kWgmmaPanelBytes = 128;

// What the tensor core is told of a tile, a matrix descriptor (PTX, "Matrix Descriptor Format"); addresses
// and distances are in units of 16 bytes:
//   bits  0-13   the address in shared memory, of 18 bits
//   bits 16-29   from one panel to the next, where the product does not sum over columns
//   bits 32-45   from eight rows of a panel to the next eight
//   bits 62-63   1: swizzled by 128 bytes
// descriptor_start() makes the lower half; the upper one is the same for all tiles.
inline constexpr uint32 kWgmmaDescriptorUpper = 1u << 30 | 8 * kWgmmaPanelBytes / 16;

// A group of query heads may be divided into kv_head_shares parts: attention.kv_heads and attention.group are
// those of a caller with as many more KV heads, but that the last part of a group may have fewer heads.
// The boxes of the maps, innermost axis first, in elements:
//   q     [head_dim_qk, q_heads, tokens, batch]   box {64, group, warpgroup_tokens, 1}
//   k, v  [head_dim, tokens, kv_heads / kv_head_shares, batch or pages]   box {64, box_keys, 1, 1}
// A box of keys of 8 bits has 128 columns. A ragged tensor has batch 1. All are swizzled by 128 bytes, and
// zeros are read outside of them. In latent attention v is the tensor of the latents, with the position's
// columns behind them unless these are k and q_pe.
struct WgmmaArguments {
    AttentionArguments attention;
    TensorMap q, k, v, q_pe;
    int32 kv_head_shares;    // KV heads of the attention to one of k and v
    int32 whole_group;       // query heads to one KV head of k and v
    int32 warpgroup_tokens;  // query tokens of a consumer warpgroup's 64 rows: 64 / group, whole tokens
    // What CTAs draw: first two tiles of a stream at a time, then one, by turns of so many streams.
    uint32 draws, paired_draws, mixed_streams;
    int32 box_keys;  // tile_kv, or of paged KV the greatest common divisor with the page size
    float slack;     // by how much logits may exceed the one that a row's exponents are relative to
};

// A kernel's parameters, whatever the toolchain and the driver.
static_assert(sizeof(WgmmaArguments) <= 4096);

struct WgmmaShape {
    int32 head_dim_qk, head_dim_vo;
    int32 tile_q, tile_kv;
    int32 stages;  // tiles as they are loaded
    bool gather;   // keys of pages, row by row: a tile holds no whole 16 of each
    bool shares;   // CTAs have equal shares of the keys, and draw nothing
    bool absolute_cuts;
    bool latent;  // V is a part of K; one warpgroup makes the weights, two have half of O's columns each
    StorageBytes bytes;
};

// Bytes of what the tensor core multiplies. Keys of fewer are loaded as they are stored, into a ring of their
// own, and a warpgroup widens them into the one that is multiplied.
inline constexpr int32 kWgmmaOperandBytes = 2;

ATTNSMITH_HOST_DEVICE constexpr bool wgmma_widens(const WgmmaShape& shape) {
    return shape.bytes.key_value < kWgmmaOperandBytes;
}

// Whether they are widened in their place, by the warps that load them: latents leave no room for another
// ring.
ATTNSMITH_HOST_DEVICE constexpr bool wgmma_widens_in_place(const WgmmaShape& shape) {
    return wgmma_widens(shape) && shape.latent;
}
// Whether they are widened from one ring to another.
ATTNSMITH_HOST_DEVICE constexpr bool wgmma_has_stored_ring(const WgmmaShape& shape) {
    return wgmma_widens(shape) && !shape.latent;
}

// Warps of a CTA before those that multiply: those that find and load, and those that only widen.
inline constexpr int32 kWgmmaLoaderWarps = 4;
ATTNSMITH_HOST_DEVICE constexpr int32 wgmma_producer_warps(const WgmmaShape& shape) {
    return kWgmmaLoaderWarps * (wgmma_has_stored_ring(shape) ? 2 : 1);
}
// That widen K, and as many that widen V.
inline constexpr int32 kWgmmaWidenerWarps = 2;

// Tiles of K, and of V, that there is room for as they are multiplied. Of two one is widened while the other
// is in use.
ATTNSMITH_HOST_DEVICE constexpr int32 wgmma_operand_stages(const WgmmaShape& shape) {
    return wgmma_has_stored_ring(shape) ? 2 : shape.stages;
}

// Columns that a warpgroup can have all of, those of O in registers and of K in shared memory.
inline constexpr int32 kWgmmaNarrowHeadDim = 256;

// Whether K or O has more, so that there are three warpgroups for the same rows: one makes the weights, two
// have half of O's columns each. O of 64 rows and 512 columns is half of an SM's registers.
ATTNSMITH_HOST_DEVICE constexpr bool wgmma_is_wide(const WgmmaShape& shape) {
    return shape.latent || shape.head_dim_qk > kWgmmaNarrowHeadDim || shape.head_dim_vo > kWgmmaNarrowHeadDim;
}

// Warpgroups of a CTA that multiply, and those that have rows of their own.
ATTNSMITH_HOST_DEVICE constexpr int32 wgmma_row_groups(const WgmmaShape& shape) {
    return shape.tile_q / kWgmmaRows;
}
ATTNSMITH_HOST_DEVICE constexpr int32 wgmma_consumers(const WgmmaShape& shape) {
    return wgmma_is_wide(shape) ? 3 : wgmma_row_groups(shape);
}

// Lanes of a warp that arrive at the barriers of tiles as they are stored. Of gathered keys each lane copies
// some, and reads others.
ATTNSMITH_HOST_DEVICE constexpr int32 wgmma_lanes_arriving(const WgmmaShape& shape) {
    return shape.gather ? 32 : 1;
}

// A thread's that widens, where one warpgroup multiplies, which leaves some, and where two do.
ATTNSMITH_HOST_DEVICE constexpr int32 wgmma_widener_registers(const WgmmaShape& shape) {
    if (!wgmma_has_stored_ring(shape)) return 0;
    return wgmma_row_groups(shape) == 1 ? 80 : 56;
}

// Wide kernels load K and V, and give them back, in pieces of their columns, which are whole panels. O += P V
// is a product for each piece, and each of the two warpgroups has as many. Latents are K and V in one: what
// comes as K are the pieces of one warpgroup, and as V those of the other.
ATTNSMITH_HOST_DEVICE constexpr int32 wgmma_piece_columns(const WgmmaShape& shape, bool of_values) {
    return (of_values || shape.latent) && shape.head_dim_vo / 2 % 128 != 0 ? 64 : 128;
}
ATTNSMITH_HOST_DEVICE constexpr int32 wgmma_pieces(const WgmmaShape& shape, bool of_values) {
    if (!wgmma_is_wide(shape)) return 1;
    const int32 columns = shape.latent ? shape.head_dim_vo / 2
                          : of_values  ? shape.head_dim_vo
                                       : shape.head_dim_qk;
    return columns / wgmma_piece_columns(shape, of_values);
}

// Blocks whose weights there is room for. With latents they take the place of the position's columns.
ATTNSMITH_HOST_DEVICE constexpr int32 wgmma_weight_stages(const WgmmaShape& shape) {
    return shape.latent ? shape.stages : 2;
}

// What the warpgroup that makes weights tells the others of a block's rows, and of a tile's.
struct WgmmaBlockRows {
    float rescale[kWgmmaRows];  // of O, where
    uint32 rescales[4];         // a row of a warp's does
};
struct WgmmaTileRows {
    float maximum[kWgmmaRows], sum[kWgmmaRows];
    float correction[kWgmmaRows];  // what O has to be multiplied by to be relative to the maximum
};

// A sequence among packed tiles.
struct PackedTiles {
    int32 before, count;  // tiles of sequences that come first; its own
};

inline constexpr int32 kWgmmaSorted = 32;     // sequences, at most: a lane each
inline constexpr int32 kWgmmaWorkStages = 2;  // of the ring of work tiles
inline constexpr int32 kWgmmaWorkBytes = 176;
inline constexpr int32 kWgmmaConsumers = 3;  // warpgroups of a CTA that multiply, at most

// The kinds of mbarriers of a CTA, in their order in shared memory.
enum class WgmmaBarrier : int32 {
    clearing_k,
    clearing_v,
    next_tile,
    work_full,
    work_empty,
    q_full,
    q_empty,
    k_full,
    k_empty,
    v_full,
    v_empty,
    stored_k_full,
    stored_k_empty,
    stored_v_full,
    stored_v_empty,
    position_full,
    weights_full,
    weights_empty,
    rows,
    kinds
};

inline constexpr int32 kWgmmaBarrierBytes = 8;

struct WgmmaBarriers {
    int32 count;     // of the kind
    int32 arrivals;  // that complete a phase of one
};

// The one table of barriers: their places, their initial counts and their room in shared memory follow from
// it. attention/wgmma/pipeline.cuh says who arrives and who waits.
ATTNSMITH_HOST_DEVICE constexpr WgmmaBarriers wgmma_barriers(const WgmmaShape& shape, WgmmaBarrier kind) {
    const int32 row_groups = wgmma_row_groups(shape), consumer_warps = wgmma_consumers(shape) * 4,
                loaders = wgmma_producer_warps(shape) - 1, operand_stages = wgmma_operand_stages(shape),
                stored_stages = wgmma_has_stored_ring(shape) ? shape.stages : 0,
                fillers = wgmma_has_stored_ring(shape) ? kWgmmaWidenerWarps : 1,
                lanes = wgmma_lanes_arriving(shape), k_pieces = wgmma_pieces(shape, false),
                v_pieces = wgmma_pieces(shape, true);
    const bool wide = wgmma_is_wide(shape), in_place = wgmma_widens_in_place(shape);
    switch (kind) {
        case WgmmaBarrier::clearing_k:
            return {shape.latent ? 1 : 0, in_place ? 1 : k_pieces};
        case WgmmaBarrier::clearing_v:
            return {1, (in_place ? 1 : v_pieces) + (shape.latent && shape.head_dim_qk > 0 ? 1 : 0)};
        case WgmmaBarrier::next_tile:
            return {1, 1};
        case WgmmaBarrier::work_full:
            return {kWgmmaWorkStages, 1};
        case WgmmaBarrier::work_empty:
            return {kWgmmaWorkStages, (consumer_warps + loaders) * 32};
        case WgmmaBarrier::q_full:
            return {row_groups, 1};
        case WgmmaBarrier::q_empty:
            return {row_groups, 4};
        case WgmmaBarrier::k_full:
            return {operand_stages * k_pieces, fillers};
        case WgmmaBarrier::k_empty:
            return {operand_stages * k_pieces, wide ? 4 : consumer_warps};
        case WgmmaBarrier::v_full:
            return {operand_stages * v_pieces, fillers};
        case WgmmaBarrier::v_empty:
            return {operand_stages * v_pieces, wide ? 4 : consumer_warps};
        case WgmmaBarrier::stored_k_full:
        case WgmmaBarrier::stored_v_full:
            return {stored_stages, lanes};
        case WgmmaBarrier::stored_k_empty:
        case WgmmaBarrier::stored_v_empty:
            return {stored_stages, kWgmmaWidenerWarps * lanes};
        case WgmmaBarrier::position_full:
            return {shape.latent ? shape.stages : 0, 1};
        case WgmmaBarrier::weights_full:
            return {wide ? wgmma_weight_stages(shape) : 0, 4};
        case WgmmaBarrier::weights_empty:
            return {wide && !shape.latent ? wgmma_weight_stages(shape) : 0, 256};
        case WgmmaBarrier::rows:
            return {wide ? kWgmmaWorkStages : 0, 128};
        case WgmmaBarrier::kinds:
            break;
    }
    return {0, 0};
}

// How many barriers come before the kind's, which is its first one's index. Before `kinds` come all.
ATTNSMITH_HOST_DEVICE constexpr int32 wgmma_barriers_before(const WgmmaShape& shape, WgmmaBarrier kind) {
    int32 count = 0;
    for (int32 i = 0; i < int32(kind); ++i) count += wgmma_barriers(shape, WgmmaBarrier(i)).count;
    return count;
}

struct WgmmaLayout {
    int32 q;  // tile_q rows
    int32 k,
        v;  // the tiles that are multiplied; with latents halves of their columns, and in v the position's
    int32 k_stage, v_stage;
    int32 stored_k, stored_v;  // where they are widened, `stages` tiles each as they are loaded
    int32 stored_k_stage, stored_v_stage;
    int32 q_panel, kv_panel;  // from one panel to the next
    int32 weights;            // wide: of the first block, and from one block's to the next
    int32 weights_stage;
    int32 work;        // the ring of work tiles
    int32 sorted;      // PackedTiles of up to 32 sequences, where tiles are drawn
    int32 share;       // a ShareState, where there are shares
    int32 state;       // absolute_cuts: O of what was found before the last cut, or a PieceList
    int32 row_states;  // wide: WgmmaBlockRows of each block's weights, WgmmaTileRows of each work tile
    int32 rows;        // of gathered keys: where a block's are, 8 bytes each, of K, V and the position
    int32 barriers;    // mbarriers, by wgmma_barriers()
    int32 total;
};

// Columns of a panel whose elements have so many bytes.
ATTNSMITH_HOST_DEVICE constexpr int32 wgmma_panel_columns(int32 element_bytes) {
    return kWgmmaPanelBytes / element_bytes;
}

ATTNSMITH_HOST_DEVICE constexpr int32 wgmma_panels(int32 head_dim, int32 element_bytes) {
    return (head_dim * element_bytes + kWgmmaPanelBytes - 1) / kWgmmaPanelBytes;
}

ATTNSMITH_HOST_DEVICE constexpr WgmmaLayout wgmma_layout(const WgmmaShape& shape) {
    WgmmaLayout s{};
    s.q_panel = shape.tile_q * kWgmmaPanelBytes;
    s.kv_panel = shape.tile_kv * kWgmmaPanelBytes;
    const int32 k_panels = wgmma_panels(shape.head_dim_qk, kWgmmaOperandBytes);
    const int32 v_panels = wgmma_panels(shape.head_dim_vo, kWgmmaOperandBytes);
    const int32 stages = wgmma_operand_stages(shape);
    s.k_stage = (shape.latent ? v_panels / 2 : k_panels) * s.kv_panel;
    // Latents have a panel for the weights in any case, which take the place of the position's columns.
    s.v_stage = (shape.latent ? v_panels / 2 + 1 : v_panels) * s.kv_panel;
    s.q = 0;
    s.k = (wgmma_panels(shape.head_dim_qk, shape.bytes.query) +
           (shape.latent ? wgmma_panels(shape.head_dim_vo, shape.bytes.query) : 0)) *
          s.q_panel;
    s.v = s.k + stages * s.k_stage;
    s.stored_k = s.v + stages * s.v_stage;
    if (wgmma_has_stored_ring(shape)) {
        s.stored_k_stage = wgmma_panels(shape.head_dim_qk, shape.bytes.key_value) * s.kv_panel;
        s.stored_v_stage = wgmma_panels(shape.head_dim_vo, shape.bytes.key_value) * s.kv_panel;
    }
    s.stored_v = s.stored_k + shape.stages * s.stored_k_stage;
    const int32 end = s.stored_v + shape.stages * s.stored_v_stage;
    const bool wide = wgmma_is_wide(shape);
    s.weights = shape.latent ? s.v + s.v_stage - s.kv_panel : end;
    s.weights_stage = shape.latent ? s.v_stage : kWgmmaRows * kWgmmaPanelBytes;
    s.work = end + (wide && !shape.latent ? wgmma_weight_stages(shape) * s.weights_stage : 0);
    s.sorted = s.work + kWgmmaWorkStages * kWgmmaWorkBytes;
    s.share = s.sorted + (shape.shares ? 0 : kWgmmaSorted * int32(sizeof(PackedTiles)));
    s.state = s.share + (shape.shares ? share_state(int32(sizeof(ShareState))) : 0);
    const int32 state_row = (shape.head_dim_vo + (shape.shares ? 0 : 2)) * int32(sizeof(float));
    s.row_states = s.state + (shape.absolute_cuts ? shape.tile_q * state_row : 0);
    s.rows = s.row_states + (wide ? wgmma_weight_stages(shape) * int32(sizeof(WgmmaBlockRows)) +
                                        kWgmmaWorkStages * int32(sizeof(WgmmaTileRows))
                                  : 0);
    static_assert(kPieceListBytes <= kWgmmaRows * 8 * int32(sizeof(float)));
    s.barriers = s.rows + (shape.gather ? (shape.latent ? 3 : 2) * shape.tile_kv * int32(sizeof(uint64)) : 0);
    s.total = s.barriers + wgmma_barriers_before(shape, WgmmaBarrier::kinds) * kWgmmaBarrierBytes;
    return s;
}

}  // namespace attnsmith::abi
