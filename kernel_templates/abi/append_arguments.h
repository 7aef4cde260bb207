// The arguments of the kernel that appends tokens to a cache: one struct, passed by value. Strides are in
// elements.
#pragma once

#include "abi/attention_arguments.h"
#include "abi/divisor.h"
#include "abi/integers.h"

namespace attnsmith::abi {

// Columns of a row that a lane has side by side.
inline constexpr int32 kAppendChunk = 8;

// Whether a lane can have both halves of a row that is rotated as a whole by halves: rows of more have two
// chunks a lane anyway.
ATTNSMITH_HOST_DEVICE constexpr bool append_has_halves(int32 columns, int32 rotated_by_halves) {
    return columns == rotated_by_halves && columns >= 2 * kAppendChunk && (columns & (columns - 1)) == 0;
}

// The lanes that share a row: a power of two, so that rows tile a warp, and so that a butterfly adds them. A
// lane's second chunk is as far from its first as there are lanes.
ATTNSMITH_HOST_DEVICE constexpr int32 append_lanes(int32 columns, bool has_halves) {
    int32 lanes = 1;
    while (lanes < 32 && (has_halves ? 2 : 1) * lanes * kAppendChunk < columns) lanes *= 2;
    return lanes;
}
ATTNSMITH_HOST_DEVICE constexpr int32 append_chunks(int32 columns, bool has_halves) {
    return columns > append_lanes(columns, has_halves) * kAppendChunk ? 2 : 1;
}

// Rows of a lane at a time: as many as there are registers for.
ATTNSMITH_HOST_DEVICE constexpr int32 append_at_once(int32 chunks) { return 4 / chunks; }

// Tokens whose slots a warp compares with as many others, or among themselves.
inline constexpr int32 kSlotTile = 128;

// The heads' rows of every token, of one of the tensors, and where they are written to.
struct AppendRows {
    const void* source;  // [sequence][token][head][column], the last stride 1
    void* target;        // q: as the source; of a cache [sequence or page][token][head][column]
    const void* weight;  // of the norm; null: none
    float* scale;        // null: none; given: of head h at h * scale_stride; written: where the strides say
    int64 source_sequence_stride, source_token_stride, source_head_stride;
    int64 target_sequence_stride, target_token_stride, target_head_stride;
    int64 scale_sequence_stride, scale_token_stride, scale_head_stride, scale_block_stride;
    int32 scale_stride;
    int32 heads;
    int32 steps;   // of a piece: so many times as many rows as a warp has side by side
    int32 pieces;  // of a token's heads; 0: the tensor is absent
    int32 weight_is_fp32;
};

struct AppendArguments {
    // The lengths and pages of each sequence, and the status; nothing else of it is set.
    AttentionArguments batch;
    AppendRows q, k, v;        // of latents, k is the position's columns and v the latent's
    const void* slot_mapping;  // [token]; null: not by slots
    const void* positions;     // [token]; null: by length
    const void* rope_table;    // [position][rotary_dim], or frequencies [rotary_dim / 2]
    int64 rope_row_stride;
    int64 rope_positions;   // that there are
    int64 slots;            // of the cache
    Divisor slots_of_each;  // of a page, or of a sequence in a dense cache
    Divisor q_len;          // tokens of each sequence; 0: they are all in a row
    Divisor pieces;         // of a token, of all three
    Divisor slot_pairs;     // that each tile of tokens has its slots compared in
    int32 items;            // tokens * pieces, a warp each
    int32 slot_tiles;       // of all tokens; 0: slots are not compared
    int32 slots_are_64, positions_are_64, rope_is_fp32;
    int32 has_cache;
    float eps;
    float rope_factor;
};

// A kernel's parameters, whatever the toolchain and the driver.
static_assert(sizeof(AppendArguments) <= 4096);

}  // namespace attnsmith::abi
