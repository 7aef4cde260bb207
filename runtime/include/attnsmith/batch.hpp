// What one launch works on: tensors, and where each sequence lies in them. Lengths, indptrs and page tables
// are device memory that the kernel reads; the host gives only bounds, so a captured graph stays valid as
// lengths change. All of these are plain values that own nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "attnsmith/tensor.hpp"
#include "attnsmith/types.hpp"

namespace attnsmith {

// The tensors of op attention and op mla. Axes are in the stated order whatever the memory layout is: strides
// say where elements lie. The last stride of q, k, v and o is 1; lse may have any strides. The caller keeps
// the memory until the launches that use it are done.
struct AttentionTensors {
    static constexpr Op kOp = Op::attention;  // the op that these are the tensors of; op mla has the same

    // Queries: [batch, q_len, q_heads, head_dim_qk], or [q_tokens, q_heads, head_dim_qk] with
    // Batch::q_indptr. Op mla: head_dim_ckv columns and then head_dim_kpe, or the first alone if q_pe has the
    // others.
    Tensor q{};
    // Keys: dense [batch, kv_len, kv_heads, head_dim_qk], ragged [kv_tokens, kv_heads, head_dim_qk], paged
    // [pages, page_size, kv_heads, head_dim_qk] (NHD) or [pages, kv_heads, page_size, head_dim_qk] (HND). Op
    // mla: the latents, dense [batch, kv_len, columns], ragged [kv_tokens, columns] or paged [pages,
    // page_size, columns], with or without an axis of 1, the KV head, before the columns; head_dim_ckv
    // columns and then head_dim_kpe, or the first alone if kpe has the others.
    Tensor k{};
    // Values: the axes of k, with head_dim_vo columns. Absent for op mla, whose values are the first
    // head_dim_ckv columns of k.
    Tensor v{};
    // Output: the axes of q, with head_dim_vo columns (op mla: head_dim_ckv), of AttentionSpec::o_dtype.
    // Overlaps no other tensor.
    Tensor o{};
    // Log-sum-exp of each row, natural log, fp32: [batch, q_len, q_heads] or [q_tokens, q_heads], with any
    // strides. Present exactly when AttentionSpec::lse is set.
    Tensor lse{};
    // Sinks: fp32 [q_heads], natural-log units. Present exactly when AttentionSpec::sink is set.
    Tensor sinks{};
    // Slopes: fp32 [q_heads]. Present exactly when AttentionSpec::alibi is set.
    Tensor alibi_slopes{};

    // Op mla: the head_dim_kpe position columns of q, on the axes of q, if q itself has head_dim_ckv columns
    // alone. Absent: q has them after its own.
    Tensor q_pe{};
    // Op mla: the head_dim_kpe position columns of the latents: dense [batch, kv_len, columns], ragged
    // [kv_tokens, columns], paged [pages, page_size, columns], with or without an axis of 1 before the
    // columns. Absent: k has them after its own. With kv_scale block128 it is present, of
    // AttentionSpec::dtype, and has no scale.
    Tensor kpe{};

    // Scales of k, fp32. kv_scale tensor: [1]; head: [kv_heads]; token_head: the axes of k without the last;
    // block128: those and one of ceil(head_dim / 128) blocks of columns (op mla: head_dim_ckv / 128). A key
    // is its stored number times its scale: vLLM's k_scale, FlashAttention's descale, the reciprocal of
    // TensorRT-LLM's kv_scale_orig_quant. Op mla: of the latents, as keys and as values. Scales of tokens may
    // have any strides: those after the columns of each head are a view of the cache. Present exactly when
    // the spec has a kv_scale. A scale that is not a finite number above 0 makes the rows that see it NaN and
    // sets CallStatus::scale_not_positive().
    Tensor k_scale{};
    // Scales of v, fp32, with the axes that k_scale has for k. Absent for op mla. Present exactly when the
    // spec has a kv_scale.
    Tensor v_scale{};
};

// Other addresses for the tensors of a Call, for one launch of it. Null: the tensor is where it was bound.
// The cache of keys and values of one layer differs from that of another by its address alone. Each tensor
// moves by itself, except that scales, or the position columns of a latent, that lie within the rows of k
// move along with k.
struct TensorAddresses {
    const void* q = nullptr;  // address of q in this launch; null: the bound one
    const void* k = nullptr;  // address of the first element of k in this launch; null: the bound one
    const void* v = nullptr;  // address of the first element of v in this launch; null: the bound one
    // Address of o in this launch; null: the bound one. Overlaps no other tensor.
    const void* o = nullptr;
    // Address of lse in this launch; null: the bound one. Only for a Call that was bound with lse.
    float* lse = nullptr;
    // Address of sinks in this launch; null: the bound one. Only for a Call that was bound with sinks.
    const float* sinks = nullptr;
    // Address of alibi_slopes in this launch; null: the bound one. Only for a Call that was bound with
    // alibi_slopes.
    const float* alibi_slopes = nullptr;
    // Address of q_pe in this launch; null: the bound one. Only for a Call that was bound with q_pe.
    const void* q_pe = nullptr;
    // Address of kpe in this launch; null: the bound one, which moves with k if kpe lies within the rows of
    // k. Only for a Call that was bound with kpe.
    const void* kpe = nullptr;
    // Address of k_scale in this launch; null: the bound one, which moves with k if the scales lie within the
    // rows of k. Only for a Call that was bound with k_scale.
    const float* k_scale = nullptr;
    // Address of v_scale in this launch; null: the bound one, which moves with v if the scales lie within the
    // rows of v. Only for a Call that was bound with v_scale.
    const float* v_scale = nullptr;
};

// The tensors of op merge. State s is what attention over the s-th set of keys gave: o_states[s] and
// lse_states[s]. A row whose lse is -inf contributes nothing, whatever its o holds; rows with nothing but
// such give o = 0 and lse = -inf; a NaN in lse makes the row NaN. Each tensor has strides of its own; the
// last stride of o and of the o_states is 1. The Batch is empty, and no workspace is needed. The caller keeps
// the memory until the launches that use it are done.
struct MergeTensors {
    static constexpr Op kOp = Op::merge;  // the op that these are the tensors of

    // Most states of one call: at least 32 in every version. More states are merged in steps.
    static constexpr std::size_t kMaxStates = 32;

    // Results over the sets of keys, from 1 to kMaxStates of them, each [q_tokens, q_heads, head_dim_vo].
    std::vector<Tensor> o_states{};
    // Log-sum-exps, one for each of o_states: fp32, natural log, [q_tokens, q_heads].
    std::vector<Tensor> lse_states{};
    // Result, [q_tokens, q_heads, head_dim_vo]. May be the very view that one of o_states is; overlaps
    // nothing else.
    Tensor o{};
    // Log-sum-exp of the result, fp32 [q_tokens, q_heads]. May be the very view that one of lse_states is;
    // overlaps nothing else. Present exactly when AttentionSpec::lse is set.
    Tensor lse{};
};

// The tensors of op append: the rows of new tokens, and where they go. Tokens are [batch, q_len] or, all in a
// row, [tokens]; all inputs have one of the two. Any strides are taken but the last, which is 1: views of a
// fused tensor of q, k and v will do. q and q_out may be absent (layers that only fill a cache), or k and v
// and their caches (layers that read the cache of another layer). A token is written wholly or not at all,
// its q as well. With Slots::mapping the Batch is empty; with Slots::table it has the lengths and the pages,
// and q alone needs the lengths too, by which it is rotated. The workspace is kWorkspaceZeroedBytes long and
// holds the status alone: launches that run at the same time may share one. The caller keeps the memory until
// the launches that use it are done.
struct AppendTensors {
    static constexpr Op kOp = Op::append;  // the op that these are the tensors of

    // New queries, [..., q_heads, head_dim_qk]. Latents: [..., q_heads, head_dim_kpe], the position columns
    // alone, such as a view of a wider q.
    Tensor q{};
    // New keys, [..., kv_heads, head_dim_qk]. Latents: [..., head_dim_ckv] or, if kpe is absent, [...,
    // head_dim_ckv + head_dim_kpe], with or without an axis of 1, the KV head, before the columns.
    Tensor k{};
    // New values, [..., kv_heads, head_dim_vo]. Absent for latents.
    Tensor v{};
    // Where q is written: the axes of q, of AttentionSpec::q_dtype. May be the very view that q is; overlaps
    // nothing else. Present exactly when q is.
    Tensor q_out{};
    // Cache of keys: dense [batch, kv_len, kv_heads, head_dim_qk], paged [pages, page_size, kv_heads,
    // head_dim_qk] (NHD) or [pages, kv_heads, page_size, head_dim_qk] (HND), of AttentionSpec::kv_dtype, or
    // uint8 in place of an 8-bit float. Latents: [batch, kv_len, columns] or [pages, page_size, columns],
    // with or without an axis of 1 before the columns. Overlaps no other tensor.
    Tensor k_cache{};
    // Cache of values: the axes of k_cache, with head_dim_vo columns. Absent for latents. Overlaps no other
    // tensor.
    Tensor v_cache{};

    // Latents: the head_dim_kpe position columns of the new tokens, [..., head_dim_kpe]. Absent: k has them
    // after its head_dim_ckv columns.
    Tensor kpe{};
    // Latents: the cache of position columns, [pages, page_size, head_dim_kpe] or [batch, kv_len,
    // head_dim_kpe]. Absent: k_cache has them after its head_dim_ckv columns. With kv_scale block128 it is
    // present, of AttentionSpec::dtype.
    Tensor kpe_cache{};

    // Slot of each token with Slots::mapping: [tokens], batch * q_len of them, int64 or
    // AttentionSpec::index_dtype. A slot is page * page_size + offset, or sequence * kv_len + position in a
    // dense cache; a negative one is no slot, and the token is passed over. Needed for k; optional for q
    // alone. Absent with Slots::table.
    Tensor slot_mapping{};
    // Position that each token is rotated by: [tokens], int64 or AttentionSpec::index_dtype. Absent with
    // Slots::table: it is the place in the sequence. Present only if the spec has a rope.
    Tensor positions{};
    // What angles are taken from. RopeTable::cos_sin: [positions, rotary_dim], the cosines and then the
    // sines, fp32 or AttentionSpec::dtype. RopeTable::frequencies: fp32 [rotary_dim / 2], radians a position.
    // Present exactly when the spec has a rope.
    Tensor rope_table{};
    // Weights of the RMS norm of q: [head_dim_qk], fp32 or AttentionSpec::dtype. Present exactly when q is
    // present and the spec has q_norm.
    Tensor q_norm_weight{};
    // Weights of the RMS norm of k: [head_dim_qk] (latents: [head_dim_ckv]), fp32 or AttentionSpec::dtype.
    // Present exactly when k is present and the spec has k_norm.
    Tensor k_norm_weight{};
    // Scales of k_cache, fp32. kv_scale tensor [1] and head [kv_heads] are read: what is stored is the value
    // divided by the scale, rounded. token_head (the axes of k_cache without the last) and block128 (those
    // and one of blocks of 128 columns) are computed and written: the largest magnitude of the row, or of its
    // block, over the largest number of kv_dtype. They may lie within the rows of k_cache, whose elements
    // they do not overlap. Latents: a scale of token_head is that of all columns, those of the position among
    // them. Present exactly when k is present and the spec has a kv_scale.
    Tensor k_scale{};
    // Scales of v_cache, fp32, read or written by the rule of k_scale, with its axes. Absent for latents.
    Tensor v_scale{};
    // Scale of q_out if q_dtype is an 8-bit float: fp32 [1], read. Optional; absent: 1.
    Tensor q_scale{};
};

// The tensors of op top_k. Of each row the k columns with the largest scores are selected, as an indexer does
// that chooses the keys of a sparse attention, and written in ascending order; -1 follows if there are fewer.
// Of equal scores the lower columns are selected first; a NaN is below every score. The Batch is empty; the
// workspace is kWorkspaceZeroedBytes long and holds the status alone. The caller keeps the memory until the
// launches that use it are done.
struct TopKTensors {
    static constexpr Op kOp = Op::top_k;  // the op that these are the tensors of

    // Scores, fp32 [rows, columns], the last stride 1.
    Tensor scores{};
    // First column of each row: [rows], AttentionSpec::index_dtype. Optional; absent: 0.
    Tensor row_starts{};
    // Column after the last one of each row: [rows], AttentionSpec::index_dtype. Optional; absent: all
    // columns. A bound outside the columns is clamped and sets CallStatus::kv_len_clamped().
    Tensor row_ends{};
    // Selected columns, int32 [rows, k], the last stride 1. Overlaps no other tensor.
    Tensor indices{};
};

// True for the structs of tensors that name their op.
template <class Tensors>
concept TensorsOfOp = std::is_same_v<decltype(Tensors::kOp), const Op>;

// Where each sequence lies in the tensors. Lengths are on the device, contiguous, of
// AttentionSpec::index_dtype. A length beyond its bound is clamped and reported by Call::status(); no value
// on the device makes a kernel touch memory outside the tensors. A query with no key to attend to, because
// its sequence is empty or all keys are masked, gets o = 0 and lse = -inf (with a sink, lse = the sink). Rows
// of o and lse that belong to no sequence, such as those from q_indptr[batch] on or past q_lens, keep what
// they held. Entries of a page table past the last page of a sequence, and the rest of that page, may hold
// anything: they change no bit of the result.
struct Batch {
    // First token of each sequence's queries, and the end: [batch + 1]. Absent for a dense q.
    Tensor q_indptr{};
    // Queries in use of each sequence of a dense q: [batch]. Optional.
    Tensor q_lens{};
    // First token of each sequence's keys, and the end: [batch + 1]. Present exactly for ragged KV.
    Tensor kv_indptr{};
    // Keys of each sequence: [batch]. Optional for dense KV, needed with page_table.
    Tensor kv_lens{};

    // Paged KV, a padded table: [batch, most pages a sequence]. Rows may be strided. Needs kv_lens.
    Tensor page_table{};
    // Row of page_table of each sequence: [batch]. Optional. page_table is then [rows, most pages a
    // sequence], whatever the batch is, and a batch in another order needs no other table. Two sequences may
    // have one row. A sequence whose row the table does not have has no keys, and sets
    // CallStatus::page_out_of_range().
    Tensor table_rows{};
    // Paged KV, compressed rows in place of page_table: the first of page_indices of each sequence, and the
    // end, [batch + 1].
    Tensor page_indptr{};
    // Paged KV, compressed rows: the pages of all sequences, [most pages of all sequences].
    Tensor page_indices{};
    // Paged KV, compressed rows: tokens in the last page of each sequence, [batch], 1 .. page_size.
    Tensor last_page_len{};

    // Upper bound of the queries of one sequence, known on the host. 0: what the shapes allow, which is the
    // q_len of a dense q and the tokens of a ragged one. The grid is sized for it: give the true maximum of
    // the batch if the shapes are much larger. A longer sequence on the device is clamped and reported by
    // CallStatus::q_len_clamped().
    std::int64_t max_q_len = 0;
    // Upper bound of the keys of one sequence, known on the host. 0: what the shapes allow, such as the
    // columns of page_table times page_size. Keys are divided over the GPU for it: give the true maximum of
    // the batch if the shapes are much larger. A longer sequence on the device is clamped and reported by
    // CallStatus::kv_len_clamped().
    std::int64_t max_kv_len = 0;
};

}  // namespace attnsmith
