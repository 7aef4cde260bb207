// The arguments of every attention kernel, attention and merge alike: one struct, passed by value.
// All strides are in elements of the tensor's dtype. Device code reads lengths from device memory and clamps
// them to the bounds given here, so no value on the device can make it leave a tensor.
#pragma once

#include "abi/divisor.h"
#include "abi/integers.h"
#include "abi/key_bounds.h"

namespace attnsmith::abi {

// Bits of the status word at the start of the workspace.
inline constexpr uint32 kStatusQueryClamped = 1;
inline constexpr uint32 kStatusKeyClamped = 2;
inline constexpr uint32 kStatusPageOutOfRange = 4;
inline constexpr uint32 kStatusWorkspaceNotZeroed = 8;
inline constexpr uint32 kStatusScaleNotPositive = 16;
inline constexpr uint32 kStatusSlotOutOfRange = 32;
inline constexpr uint32 kStatusPositionOutOfRange = 64;
inline constexpr uint32 kStatusSlotWrittenTwice = 128;

// Bytes at the start of the workspace that are zero before the first launch: the status word, and what
// kernels count in, which is zero again after each launch. Two launches at a time must not share them.
inline constexpr int64 kZeroedBytes = 8192;
// Words of them: the first is the status. From kArrivals on each share has one (attention/shares.cuh).
inline constexpr int32 kArrivals = 64;
inline constexpr int32 kMostShares = int32(kZeroedBytes / sizeof(uint32)) - kArrivals;

struct AttentionArguments {
    // In latent attention (constant `latent`) v is the latent, of which O is made and which q meets; k and
    // q_pe are the columns of the position, which are added to these logits. Null: they lie behind those of
    // v, and of q.
    const void* q;
    const void* k;
    const void* v;
    const void* q_pe;
    void* o;
    float* lse;                 // null: not written
    const float* sinks;         // [q_heads], natural-log units; null: none
    const float* alibi_slopes;  // [q_heads]
    // What stored keys and values are multiplied by: of a KV head at head * scale_stride, or of a head of a
    // token at strides of their own (constant `scale_blocks`); null: nothing.
    const float* k_scale;
    const float* v_scale;

    // [batch + 1] or null, [batch] or null; the index dtype is a constant of the kernel.
    const void* q_indptr;
    const void* q_lens;
    const void* kv_indptr;
    const void* kv_lens;
    // Paged KV: page ids; those of sequence b start at page_indptr[b], or where page_indptr is null at
    // table_rows[b] * page_row_stride, or at b * page_row_stride where table_rows is null, too.
    const void* page_ids;
    const void* page_indptr;
    const void* last_page_len;
    const void* table_rows;

    // What is found over a part of the keys, without the sink: of splits [split][row], where row is
    // token * q_heads + head; of shares [share][place][row of a tile].
    float* partial_o;   // [...][head_dim_vo], not normalised
    float* partial_ml;  // [...][2]: maximum and sum, see attention/epilogue.cuh
    uint32* status;

    int64 q_batch_stride, q_token_stride, q_head_stride;
    int64 q_pe_batch_stride, q_pe_token_stride, q_pe_head_stride;
    int64 k_batch_stride, k_token_stride, k_head_stride;  // paged: the batch stride is the page stride
    int64 v_batch_stride, v_token_stride, v_head_stride;
    // These are of tokens' scales, in floats; paged: the batch stride is the page stride.
    int64 k_scale_batch_stride, k_scale_token_stride, k_scale_head_stride;
    int64 v_scale_batch_stride, v_scale_token_stride, v_scale_head_stride;
    int64 scale_block_stride;  // of latents, from the scale of 128 columns to that of the next
    int64 o_batch_stride, o_token_stride, o_head_stride;
    int64 lse_batch_stride, lse_token_stride, lse_head_stride;
    int64 page_row_stride;
    int64 page_rows;  // that table_rows may state; at least 1
    int64 pages;      // how many k and v have
    int64 page_list;  // ids that page_ids holds: of one row (padded) or of all (compressed)
    int64 q_tokens;   // rows of q and o: batch * max_q_len when dense
    int64 kv_tokens;  // rows of k and v: of one sequence when dense, of all when ragged
    int64 rows;       // q_tokens * q_heads, the rows of a split's partial results

    int32 scale_stride;   // 1, or 0 where all KV heads have one scale
    Divisor scale_group;  // query heads that share a KV head of the scales'
    int32 batch;
    int32 q_heads;
    int32 kv_heads;
    Divisor group;  // query heads that share a KV head
    int32 max_q_len;
    int32 max_kv_len;
    Divisor page_size;
    KeyBounds bounds;                // of the mask
    int32 tiles;                     // query tiles of all sequences, an upper bound
    int32 sequence_tiles;            // of every sequence; 0: the tiles of all sequences are packed
    int32 splits;                    // 1: o is written, otherwise the partials
    int32 chunk;                     // keys of a split, at absolute positions; a multiple of tile_kv
    int32 least_share;               // units that a share has at least; 0: a CTA a tile
    int32 start_units;               // that the start of a tile counts for, where tiles differ
    int32 most_units;                // of a tile: all tiles together have less than 2^31
    int32 share_places, share_rows;  // with absolute cuts: a share's partial results, and rows of each
    float scale_log2;  // takes a logit to base 2; includes the scale of q k^T where nothing else applied it
    float scale;       // of q k^T
    float softcap;     // logits become softcap * tanh(softcap_scale * q k^T)
    float softcap_scale;  // scale / softcap
};

}  // namespace attnsmith::abi
