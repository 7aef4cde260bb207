// The arguments of persistent, warp-specialised attention kernels beyond abi/attention_arguments.h, their
// barriers, and their shared memory in bytes, which the planner, the launch and the kernel take from here.
#pragma once

#include "abi/attention_arguments.h"
#include "abi/attention_cuts.h"
#include "abi/attention_share.h"
#include "abi/attention_storage.h"
#include "abi/operand_stage.h"
#include "abi/tensor_map.h"
#include "abi/wgmma.h"

namespace attnsmith::abi {

// The word, counted from the status word, that counts draws; 0 between launches.
inline constexpr int32 kDrawCounter = 32;

// A group of query heads may be divided into kv_head_shares parts: attention.kv_heads and attention.group are
// those of a caller with as many more KV heads, but that the last part of a group may have fewer heads.
// The boxes of the maps, innermost axis first, in elements:
//   q     [head_dim_qk, q_heads, tokens, batch]   box {64, group, warpgroup_tokens, 1}
//   k, v  [head_dim, tokens, kv_heads / kv_head_shares, batch or pages]   box {64, box_keys, 1, 1}
// A box of keys of 8 bits has 128 columns. A ragged tensor has batch 1. All are swizzled by 128 bytes, and
// zeros are read outside of them. In latent attention v is the tensor of the latents, with the position's
// columns behind them unless these are k and q_pe.
struct PersistentArguments {
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
static_assert(sizeof(PersistentArguments) <= 4096);

struct PersistentShape {
    int32 head_dim_qk, head_dim_vo;
    int32 tile_q, tile_kv;
    int32 stages;  // tiles as they are loaded
    bool gather;   // keys of pages, row by row: a tile holds no whole 16 of each
    bool shares;   // CTAs have equal shares of the keys, and draw nothing
    bool absolute_cuts;
    bool latent;  // V is a part of K; one warpgroup makes the weights, two have half of O's columns each
    OperandStage operand_stage;
    StorageBytes bytes;
};

// Of a kernel's constants, or of the Config that states them in its source.
template <class Constants>
ATTNSMITH_HOST_DEVICE constexpr PersistentShape persistent_shape(const Constants& of,
                                                                 const StorageBytes& bytes) {
    return {.head_dim_qk = of.head_dim_qk,
            .head_dim_vo = of.head_dim_vo,
            .tile_q = of.tile_q,
            .tile_kv = of.tile_kv,
            .stages = of.stages,
            .gather = of.gather,
            .shares = of.shares,
            .absolute_cuts = of.absolute_cuts,
            .latent = of.latent,
            .operand_stage = of.operand_stage,
            .bytes = bytes};
}

// Bytes of an element of K and V as it is multiplied.
ATTNSMITH_HOST_DEVICE constexpr int32 operand_bytes(const PersistentShape& shape) {
    return operand_bytes(shape.operand_stage, shape.bytes.key_value);
}

// Warps of a CTA that find and load, and where a ring of stored tiles is widened into another as many more,
// of which a number widens K, and as many V.
inline constexpr int32 kLoaderWarps = 4;
inline constexpr int32 kDequantWarps = 2;
ATTNSMITH_HOST_DEVICE constexpr int32 producer_warps(const PersistentShape& shape) {
    return kLoaderWarps + (shape.operand_stage == OperandStage::dequant_ring ? 2 * kDequantWarps : 0);
}

// Tiles of K, and of V, that there is room for as they are multiplied. Of two one is widened while the other
// is in use.
ATTNSMITH_HOST_DEVICE constexpr int32 operand_stages(const PersistentShape& shape) {
    return shape.operand_stage == OperandStage::dequant_ring ? 2 : shape.stages;
}

// Whether K or O has more columns than one warpgroup can have, so that there are three warpgroups for the
// same rows: one makes the weights, two have half of O's columns each. O of 64 rows and 512 columns is half
// of an SM's registers.
ATTNSMITH_HOST_DEVICE constexpr bool is_wide(const PersistentShape& shape) {
    return shape.latent || shape.head_dim_qk > kWgmmaNarrowHeadDim || shape.head_dim_vo > kWgmmaNarrowHeadDim;
}

// Warpgroups of a CTA that multiply, and those that have rows of their own.
ATTNSMITH_HOST_DEVICE constexpr int32 row_groups(const PersistentShape& shape) {
    return shape.tile_q / kWgmmaRows;
}
ATTNSMITH_HOST_DEVICE constexpr int32 consumer_warpgroups(const PersistentShape& shape) {
    return is_wide(shape) ? 3 : row_groups(shape);
}

// Lanes of a warp that arrive at the barriers of tiles as they are stored. Of gathered keys each lane copies
// some, and reads others.
ATTNSMITH_HOST_DEVICE constexpr int32 lanes_arriving(const PersistentShape& shape) {
    return shape.gather ? 32 : 1;
}

// A thread's that widens, where one warpgroup multiplies, which leaves some, and where two do.
ATTNSMITH_HOST_DEVICE constexpr int32 dequant_registers(const PersistentShape& shape) {
    if (shape.operand_stage != OperandStage::dequant_ring) return 0;
    return row_groups(shape) == 1 ? 80 : 56;
}

// Wide kernels load K and V, and give them back, in pieces of their columns, which are whole panels. O += P V
// is a product for each piece, and each of the two warpgroups has as many. Latents are K and V in one: what
// comes as K are the pieces of one warpgroup, and as V those of the other.
ATTNSMITH_HOST_DEVICE constexpr int32 piece_columns(const PersistentShape& shape, bool of_values) {
    return (of_values || shape.latent) && shape.head_dim_vo / 2 % 128 != 0 ? 64 : 128;
}
ATTNSMITH_HOST_DEVICE constexpr int32 column_pieces(const PersistentShape& shape, bool of_values) {
    if (!is_wide(shape)) return 1;
    const int32 columns = shape.latent ? shape.head_dim_vo / 2
                          : of_values  ? shape.head_dim_vo
                                       : shape.head_dim_qk;
    return columns / piece_columns(shape, of_values);
}

// Blocks whose weights there is room for. With latents they take the place of the position's columns.
ATTNSMITH_HOST_DEVICE constexpr int32 weight_stages(const PersistentShape& shape) {
    return shape.latent ? shape.stages : 2;
}

// What the warpgroup that makes weights tells the others of a block's rows, and of a tile's.
struct RowRescales {
    float rescale[kWgmmaRows];  // of O, where
    uint32 rescales[4];         // a row of a warp's does
};
struct RowStates {
    float maximum[kWgmmaRows], sum[kWgmmaRows];
    float correction[kWgmmaRows];  // what O has to be multiplied by to be relative to the maximum
};

// A sequence among packed tiles.
struct PackedTiles {
    int32 before, count;  // tiles of sequences that come first; its own
};

inline constexpr int32 kSortedSequences = 32;  // sequences, at most: a lane each
inline constexpr int32 kWorkStages = 2;        // of the ring of work tiles
inline constexpr int32 kWorkBytes = 176;
inline constexpr int32 kMostConsumers = 3;  // warpgroups of a CTA that multiply, at most

// The kinds of mbarriers of a CTA, in their order in shared memory.
enum class PersistentBarrier : int32 {
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

inline constexpr int32 kBarrierBytes = 8;

struct BarrierCount {
    int32 count;     // of the kind
    int32 arrivals;  // that complete a phase of one
};

// The one table of barriers: their places, their initial counts and their room in shared memory follow from
// it. For each kind: who arrives, then who waits, and what a phase is for. A warp arrives by one lane, but at
// `rows` and at work_empty, where each lane does. "And the bytes": a phase is complete when what the copy
// engine brings has landed as well.
ATTNSMITH_HOST_DEVICE constexpr BarrierCount persistent_barriers(const PersistentShape& shape,
                                                                 PersistentBarrier kind) {
    const bool wide = is_wide(shape), in_place = shape.operand_stage == OperandStage::dequant_in_place,
               ring = shape.operand_stage == OperandStage::dequant_ring;
    const int32 groups = row_groups(shape), consumer_warps = consumer_warpgroups(shape) * 4,
                loaders = producer_warps(shape) - 1, stages = operand_stages(shape),
                stored_stages = ring ? shape.stages : 0, fillers = ring ? kDequantWarps : 1,
                lanes = lanes_arriving(shape), k_pieces = column_pieces(shape, false),
                v_pieces = column_pieces(shape, true);
    switch (kind) {
        // The loader, once for each of a block's pieces, and the bytes; the loader. A block with rows to
        // clear, or to widen in their place: its bytes land here, and the loader's own arrival alone
        // completes k_full, or v_full.
        case PersistentBarrier::clearing_k:
            return {shape.latent ? 1 : 0, in_place ? 1 : k_pieces};
        case PersistentBarrier::clearing_v:
            return {1, (in_place ? 1 : v_pieces) + (shape.latent && shape.head_dim_qk > 0 ? 1 : 0)};
        // The K loader, after the tile's last keys; the scheduler. A work tile.
        case PersistentBarrier::next_tile:
            return {1, 1};
        // The scheduler; loaders and consumers. A work tile.
        case PersistentBarrier::work_full:
            return {kWorkStages, 1};
        // Loaders, warps that widen, and consumers; the scheduler. A work tile.
        case PersistentBarrier::work_empty:
            return {kWorkStages, (consumer_warps + loaders) * 32};
        // The Q loader, and the bytes; the warpgroup with these rows. A work tile.
        case PersistentBarrier::q_full:
            return {groups, 1};
        // The warpgroup's warps; the Q loader. A work tile.
        case PersistentBarrier::q_empty:
            return {groups, 4};
        // The loader, and the bytes, or the warps that widen; the warps that multiply. A block, or a piece of
        // its columns.
        case PersistentBarrier::k_full:
            return {stages * k_pieces, fillers};
        case PersistentBarrier::v_full:
            return {stages * v_pieces, fillers};
        // The consumers' warps, of every block of the tile, also of one that other warpgroups alone attend
        // to; in wide kernels the warps that multiply the piece last. Who fills it waits.
        case PersistentBarrier::k_empty:
            return {stages * k_pieces, wide ? 4 : consumer_warps};
        case PersistentBarrier::v_empty:
            return {stages * v_pieces, wide ? 4 : consumer_warps};
        // The loader, and the bytes, or of gathered rows each lane for what it has copied; the warps that
        // widen. A block.
        case PersistentBarrier::stored_k_full:
        case PersistentBarrier::stored_v_full:
            return {stored_stages, lanes};
        // The warps that widen; the loader. A block.
        case PersistentBarrier::stored_k_empty:
        case PersistentBarrier::stored_v_empty:
            return {stored_stages, kDequantWarps * lanes};
        // The V loader, and the bytes; the warps that make weights. The position's columns of a block.
        case PersistentBarrier::position_full:
            return {shape.latent ? shape.stages : 0, 1};
        // The warps that make weights; those with columns of O. A block.
        case PersistentBarrier::weights_full:
            return {wide ? weight_stages(shape) : 0, 4};
        // Threads with columns of O; the warps that make weights. A block; with latents the weights lie in
        // the place of the position's columns, for which k_empty and v_empty speak.
        case PersistentBarrier::weights_empty:
            return {wide && !shape.latent ? weight_stages(shape) : 0, 256};
        // Threads that make weights; those with columns of O. What a work tile's rows have found.
        case PersistentBarrier::rows:
            return {wide ? kWorkStages : 0, 128};
        case PersistentBarrier::kinds:
            break;
    }
    return {0, 0};
}

// How many barriers come before the kind's, which is its first one's index. Before `kinds` come all.
ATTNSMITH_HOST_DEVICE constexpr int32 persistent_barriers_before(const PersistentShape& shape,
                                                                 PersistentBarrier kind) {
    int32 count = 0;
    for (int32 i = 0; i < int32(kind); ++i) count += persistent_barriers(shape, PersistentBarrier(i)).count;
    return count;
}

struct PersistentLayout {
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
    int32 row_states;  // wide: RowRescales of each block's weights, RowStates of each work tile
    int32 rows;        // of gathered keys: where a block's are, 8 bytes each, of K, V and the position
    int32 barriers;    // mbarriers, by persistent_barriers()
    int32 total;
};

ATTNSMITH_HOST_DEVICE constexpr PersistentLayout persistent_layout(const PersistentShape& shape) {
    PersistentLayout s{};
    s.q_panel = shape.tile_q * kPanelBytes;
    s.kv_panel = shape.tile_kv * kPanelBytes;
    const int32 k_panels = panels_of(shape.head_dim_qk, operand_bytes(shape));
    const int32 v_panels = panels_of(shape.head_dim_vo, operand_bytes(shape));
    const int32 stages = operand_stages(shape);
    s.k_stage = (shape.latent ? v_panels / 2 : k_panels) * s.kv_panel;
    // Latents have a panel for the weights in any case, which take the place of the position's columns.
    s.v_stage = (shape.latent ? v_panels / 2 + 1 : v_panels) * s.kv_panel;
    s.q = 0;
    s.k = (panels_of(shape.head_dim_qk, shape.bytes.query) +
           (shape.latent ? panels_of(shape.head_dim_vo, shape.bytes.query) : 0)) *
          s.q_panel;
    s.v = s.k + stages * s.k_stage;
    s.stored_k = s.v + stages * s.v_stage;
    if (shape.operand_stage == OperandStage::dequant_ring) {
        s.stored_k_stage = panels_of(shape.head_dim_qk, shape.bytes.key_value) * s.kv_panel;
        s.stored_v_stage = panels_of(shape.head_dim_vo, shape.bytes.key_value) * s.kv_panel;
    }
    s.stored_v = s.stored_k + shape.stages * s.stored_k_stage;
    const int32 end = s.stored_v + shape.stages * s.stored_v_stage;
    const bool wide = is_wide(shape);
    s.weights = shape.latent ? s.v + s.v_stage - s.kv_panel : end;
    s.weights_stage = shape.latent ? s.v_stage : kWgmmaRows * kPanelBytes;
    s.work = end + (wide && !shape.latent ? weight_stages(shape) * s.weights_stage : 0);
    s.sorted = s.work + kWorkStages * kWorkBytes;
    s.share = s.sorted + (shape.shares ? 0 : kSortedSequences * int32(sizeof(PackedTiles)));
    s.state = s.share + (shape.shares ? share_state(int32(sizeof(ShareState))) : 0);
    const int32 state_row = (shape.head_dim_vo + (shape.shares ? 0 : 2)) * int32(sizeof(float));
    s.row_states = s.state + (shape.absolute_cuts ? shape.tile_q * state_row : 0);
    s.rows = s.row_states + (wide ? weight_stages(shape) * int32(sizeof(RowRescales)) +
                                        kWorkStages * int32(sizeof(RowStates))
                                  : 0);
    static_assert(kPieceListBytes <= kWgmmaRows * 8 * int32(sizeof(float)));
    s.barriers = s.rows + (shape.gather ? (shape.latent ? 3 : 2) * shape.tile_kv * int32(sizeof(uint64)) : 0);
    s.total = s.barriers + persistent_barriers_before(shape, PersistentBarrier::kinds) * kBarrierBytes;
    return s;
}

}  // namespace attnsmith::abi
