// What one launch works on: tensors, and where each sequence lies in them. Lengths, indptrs and page tables
// are device memory that the kernel reads; the host gives only bounds, so a captured graph stays valid as
// lengths change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "attnsmith/tensor.hpp"
#include "attnsmith/types.hpp"

namespace attnsmith {

// Axes are in this order whatever the memory layout is: strides say where elements lie. The last stride of q,
// k, v and o is 1; lse may have any.
struct AttentionTensors {
    static constexpr Op kOp = Op::attention;  // whose tensors they are, and Op::mla's

    Tensor q{};  // [batch, q_len, q_heads, head_dim_qk], or [q_tokens, q_heads, head_dim_qk] with
                 // Batch::q_indptr
    Tensor k{};  // dense [batch, kv_len, kv_heads, head_dim_qk], ragged [kv_tokens, kv_heads, head_dim_qk],
                 // paged [pages, page_size, kv_heads, head_dim_qk] (NHD) or [pages, kv_heads, page_size, ...]
                 // (HND)
    Tensor v{};  // as k, with head_dim_vo
    Tensor o{};  // as q, with head_dim_vo, of AttentionSpec::o_dtype; overlaps no other tensor
    Tensor lse{};           // fp32, as o without its last axis; present exactly when AttentionSpec::lse
    Tensor sinks{};         // fp32 [q_heads], natural-log units; present exactly when AttentionSpec::sink
    Tensor alibi_slopes{};  // fp32 [q_heads]; present exactly when AttentionSpec::alibi

    // Op::mla. q has head_dim_ckv columns and then head_dim_kpe, or the first alone where q_pe has the
    // others, on the same axes. Likewise k, the latents, and kpe; each dense [batch, kv_len, columns], ragged
    // [kv_tokens, columns] or paged [pages, page_size, columns], and may have an axis of 1, the KV head,
    // before the columns. v is absent: the values are the first columns of k. o has head_dim_ckv columns.
    Tensor q_pe{};
    Tensor kpe{};  // the position's columns of k, where they are apart

    // fp32 [1], or [kv_heads] of AttentionSpec::kv_scale head: a key is what k has times its scale (vLLM's
    // k_scale, FlashAttention's descale; the reciprocal of TensorRT-LLM's kv_scale_orig_quant), a value
    // likewise; of op mla k_scale is for both. Of token_head it has the axes of k but the last, with any
    // strides: scales that lie behind each head's columns are a view of the cache. Of block128 it has one
    // axis more, of head_dim / 128 blocks of columns (rounded up); of latents head_dim_ckv / 128, and kpe,
    // which is then a tensor of its own, is of AttentionSpec::dtype and has no scale. Present exactly when
    // the spec has a kv_scale. One on the device that is no ordinary number above 0 makes the rows NaN that
    // see what it is of: see CallStatus.
    Tensor k_scale{};
    Tensor v_scale{};  // as k_scale, of v
};

// Other addresses for the tensors that a Call has, for one launch of it; null: the tensor is where it was
// bound. A layer's cache of keys and values differs from the last layer's by its address alone. Each tensor
// moves by itself: where scales, or a latent's position, lie within k's rows, their addresses go along with
// k's.
struct TensorAddresses {
    const void* q = nullptr;              // of AttentionTensors::q, likewise below
    const void* k = nullptr;              // its first element
    const void* v = nullptr;              // its first element
    void* o = nullptr;                    // overlaps no other tensor
    float* lse = nullptr;                 // of a Call that was bound with one, as are the next two
    const float* sinks = nullptr;         // [q_heads]
    const float* alibi_slopes = nullptr;  // [q_heads]
    const void* q_pe = nullptr;           // of a Call that was bound with it, as is the next
    const void* kpe = nullptr;            // its first element
    const float* k_scale = nullptr;       // of a Call that was bound with it, as is the next
    const float* v_scale = nullptr;       // as many
};

// What Op::merge binds. State s is what attention over the s-th set of keys gave: o_states[s] and
// lse_states[s]. A row whose lse is -inf contributes nothing, whatever its o holds; rows with nothing but
// such give o = 0 and lse = -inf; a NaN in lse makes the row NaN. Each tensor has strides of its own; the
// last of o and of the o_states is 1. The Batch is empty, and no workspace is needed.
struct MergeTensors {
    static constexpr Op kOp = Op::merge;  // whose tensors they are

    static constexpr std::size_t kMaxStates = 32;  // of one call; more are merged in steps

    std::vector<Tensor> o_states{};    // 1 .. kMaxStates of them, each [q_tokens, q_heads, head_dim_vo]
    std::vector<Tensor> lse_states{};  // as many, fp32, natural log, each [q_tokens, q_heads]
    Tensor o{};    // as one of o_states; may be the very view that one of them is, overlaps nothing else
    Tensor lse{};  // as one of lse_states, likewise; present exactly when AttentionSpec::lse
};

// What Op::append binds: the rows of new tokens, and where they go. Tokens are [batch, q_len] or, all in a
// row, [tokens]; of all inputs alike. Any strides but the last, which is 1: views of a fused tensor of q, k
// and v will do. q may be absent, with q_out (layers that only fill a cache), or k and v, with their caches
// (layers that read another's). A token is written wholly or not at all, its q as well. The Batch is empty
// with Slots::mapping; with Slots::table it has the lengths and the pages, and q alone needs the same
// lengths, by which it is rotated. The workspace is kWorkspaceZeroedBytes long and holds the status alone:
// launches that run at the same time may share one.
struct AppendTensors {
    static constexpr Op kOp = Op::append;  // whose tensors they are

    // [..., q_heads, head_dim_qk]; of latents [..., q_heads, head_dim_kpe], the columns of the position
    // alone, such as a view of a wider q.
    Tensor q{};
    Tensor k{};      // [..., kv_heads, head_dim_qk]
    Tensor v{};      // [..., kv_heads, head_dim_vo]; absent of latents
    Tensor q_out{};  // as q, of AttentionSpec::q_dtype; may be the very view that q is, overlaps nothing else
    // The cache: dense [batch, kv_len, kv_heads, head_dim_qk], paged [pages, page_size, kv_heads,
    // head_dim_qk] (NHD) or [pages, kv_heads, page_size, head_dim_qk] (HND), of AttentionSpec::kv_dtype, or
    // uint8 in place of one of 8 bits. Overlaps no other tensor.
    Tensor k_cache{};
    Tensor v_cache{};  // as k_cache, with head_dim_vo; absent of latents

    // With latents k is [..., head_dim_ckv], and k_cache [pages, page_size, head_dim_ckv] or [batch, kv_len,
    // head_dim_ckv], each with an axis of 1, the KV head, before the columns or without. Where kpe is absent
    // k has the head_dim_kpe columns of the position behind its own, and likewise k_cache.
    Tensor kpe{};
    Tensor kpe_cache{};  // the position's columns of k_cache, where they are apart

    // [tokens], batch * q_len of them: int64 or AttentionSpec::index_dtype. With Slots::mapping the slot of
    // each token, page * page_size + offset, or in a dense cache sequence * kv_len + position; a negative one
    // is no slot, and the token is passed over. Needed for k; optional for q alone.
    Tensor slot_mapping{};
    // The shape and types are the same: what each token is rotated by. Absent with Slots::table: its place in
    // its sequence. Present only where the spec has a rope.
    Tensor positions{};
    // cos_sin: [positions, rotary_dim], the cosines and then the sines, fp32 or AttentionSpec::dtype.
    // frequencies: fp32 [rotary_dim / 2], radians a position. Present exactly when the spec has a rope.
    Tensor rope_table{};
    Tensor
        q_norm_weight{};  // [head_dim_qk], fp32 or dtype; present exactly when q is and the spec has q_norm
    Tensor k_norm_weight{};  // likewise of k, of latents [head_dim_ckv]
    // fp32 [1], or [kv_heads] of kv_scale head, as AttentionTensors has them: what is stored is the value
    // times 1 / scale, rounded. Present exactly when k is and the spec has a kv_scale; v_scale not of
    // latents. Of token_head and block128 they are written, as AttentionTensors has them beside k_cache and
    // v_cache: the largest magnitude of the row, or of its 128 columns, over the largest number of kv_dtype.
    // They may lie within the rows of the cache, whose elements they do not overlap. With latents the one of
    // token_head is of all columns, those of the position among them; with block128 kpe_cache is present, of
    // AttentionSpec::dtype.
    Tensor k_scale{};
    Tensor v_scale{};  // as k_scale, of v
    Tensor q_scale{};  // fp32 [1], optional, of a q_dtype of 8 bits
};

// What Op::top_k binds. Of each row the k columns with the largest scores are selected, as of an indexer that
// chooses the keys of a sparse attention, and written in ascending order; -1 follows where there are fewer.
// Of equal scores the lower columns are selected first; a NaN is below every score. The Batch is empty; the
// workspace is kWorkspaceZeroedBytes long and holds the status alone.
struct TopKTensors {
    static constexpr Op kOp = Op::top_k;  // whose tensors they are

    Tensor scores{};      // fp32 [rows, columns], the last stride 1
    Tensor row_starts{};  // [rows], optional: the first column of each row; AttentionSpec::index_dtype
    Tensor row_ends{};    // [rows], optional: one past the last column of each row, likewise. What is past
                          // the columns is clamped: see CallStatus::kv_len_clamped
    Tensor indices{};     // int32 [rows, k], the last stride 1; overlaps no other tensor
};

// One of the structs above.
template <class Tensors>
concept TensorsOfOp = std::is_same_v<decltype(Tensors::kOp), const Op>;

// Lengths on the device, dtype AttentionSpec::index_dtype, contiguous. A length beyond its bound is clamped
// and reported by Call::status(); no value on the device makes a kernel touch memory outside the tensors.
// A query with no key to attend to, be its sequence empty or all masked, gets o = 0 and lse = -inf (with a
// sink, lse = the sink). Rows of o and lse that belong to no sequence, such as those from q_indptr[batch] on
// or behind q_lens, keep what they held. Entries of a page table behind a sequence's last page, and the rest
// of that page, may hold anything: they change no bit of the result.
struct Batch {
    Tensor q_indptr{};   // [batch + 1]: first token of each sequence's queries, and the end
    Tensor q_lens{};     // [batch], optional, of a dense q: queries in use
    Tensor kv_indptr{};  // [batch + 1], ragged KV
    Tensor kv_lens{};    // [batch]; optional for dense KV, needed with page_table

    // Paged KV, either a padded table with kv_lens ...
    Tensor page_table{};  // [batch, most pages a sequence]; rows may be strided
    // ... of which table_rows, [batch], may state the row of each sequence: page_table is then [rows, most
    // pages a sequence], whatever the batch is, and a batch in another order needs no other table. Two
    // sequences may have one row. A sequence whose row the table has not has no keys: see CallStatus.
    Tensor table_rows{};
    // ... or compressed rows.
    Tensor page_indptr{};    // [batch + 1]
    Tensor page_indices{};   // [most pages of all sequences]
    Tensor last_page_len{};  // [batch]: tokens in each sequence's last page, 1 .. page_size

    // Bounds. 0 takes what the tensors' shapes allow, which is needed to be small where a launch should be
    // fast.
    std::int64_t max_q_len = 0;   // of one sequence
    std::int64_t max_kv_len = 0;  // of one sequence
};

}  // namespace attnsmith
