// Sequences: where their tokens are, and their lengths, clamped to the host's bounds. All kernels share this,
// so they agree on every length.
#pragma once

#include "abi/attention_arguments.h"

namespace attnsmith {

struct Sequence {
    int32 batch;
    int32 q_len, kv_len;
    int64 q_first;   // first token in a ragged q, else 0
    int64 kv_first;  // first token in ragged KV, else 0
    int64 page_row;  // index of the first page id

    // Row r of the sequence packs a group's query heads: token r / group, head r % group.
    __device__ int32 rows(const abi::AttentionArguments& args) const { return q_len * args.group; }
    // Key position that the mask is aligned to: the last query sees the last key.
    __device__ int32 position(int32 token) const { return token + kv_len - q_len; }
    // Row of the partial results, and of nothing else.
    __device__ int64 partial_row(const abi::AttentionArguments& args, int32 token, int32 head) const {
        const int64 row = args.q_indptr ? q_first + token : int64(batch) * args.max_q_len + token;
        return row * args.q_heads + head;
    }
};

__device__ inline int64 clamp(int64 x, int64 low, int64 high) { return x < low ? low : x > high ? high : x; }

template <class Index>
__device__ int64 index_at(const void* indices, int64 i) {
    return static_cast<const Index*>(indices)[i];
}

// Length of entry b of an indptr or a list of lengths, clamped; `status` gets `flag` where it had to be.
template <class Index>
__device__ int32 clamped_length(const void* indptr, const void* lengths, int32 b, int64 tokens, int32 bound,
                                int64& first, uint32 flag, uint32& status) {
    int64 wanted = bound;
    int64 limit = bound;
    first = 0;
    if (indptr) {
        const int64 begin = index_at<Index>(indptr, b);
        first = clamp(begin, 0, tokens);
        wanted = index_at<Index>(indptr, b + 1) - begin;
        limit = clamp(tokens - first, 0, bound);
        if (first != begin) status |= flag;
    } else if (lengths) {
        wanted = index_at<Index>(lengths, b);
    }
    const int64 length = clamp(wanted, 0, limit);
    if (length != wanted) status |= flag;
    return int32(length);
}

template <class Index>
__device__ int32 query_length(const abi::AttentionArguments& args, int32 b, int64& first, uint32& status) {
    return clamped_length<Index>(args.q_indptr, args.q_lens, b, args.q_tokens, args.max_q_len, first,
                                 abi::kStatusQueryClamped, status);
}

// Compressed page table: the length follows from the number of pages and the last page's.
template <class Index>
__device__ int32 compressed_length(const abi::AttentionArguments& args, int32 b, int64& page_row,
                                   uint32& status) {
    int64 first;
    const int32 pages = clamped_length<Index>(args.page_indptr, nullptr, b, args.page_list, abi::kUnbounded,
                                              first, abi::kStatusKeyClamped, status);
    page_row = first;
    if (pages == 0) return 0;
    const int64 last = index_at<Index>(args.last_page_len, b);
    const int64 in_last = clamp(last, 0, args.page_size);
    const int64 wanted = (int64(pages) - 1) * args.page_size + in_last;
    const int64 length = clamp(wanted, 0, args.max_kv_len);
    // A last page without a token is no page of the sequence's.
    if (in_last != last || last < 1 || length != wanted) status |= abi::kStatusKeyClamped;
    return int32(length);
}

// Padded page table: the sequence's row, of which the table may have none. Without pages there are no keys.
template <class Index>
__device__ void find_pages(const abi::AttentionArguments& args, Sequence& s, uint32& status) {
    int64 row = s.batch;
    if (args.table_rows) row = index_at<Index>(args.table_rows, s.batch);
    if (static_cast<uint64>(row) < static_cast<uint64>(args.page_rows)) {
        s.page_row = row * args.page_row_stride;
        return;
    }
    if (s.kv_len > 0) status |= abi::kStatusPageOutOfRange;
    s.kv_len = 0;
}

template <class Config>
__device__ Sequence load_sequence(const abi::AttentionArguments& args, int32 b, uint32& status) {
    using Index = typename Config::Index;
    Sequence s{};
    s.batch = b;
    s.q_len = query_length<Index>(args, b, s.q_first, status);
    if (Config::paged && args.page_indptr) {
        s.kv_len = compressed_length<Index>(args, b, s.page_row, status);
    } else {
        s.kv_len = clamped_length<Index>(args.kv_indptr, args.kv_lens, b, args.kv_tokens, args.max_kv_len,
                                         s.kv_first, abi::kStatusKeyClamped, status);
        if constexpr (Config::paged) find_pages<Index>(args, s, status);
    }
    return s;
}

__device__ inline void report(const abi::AttentionArguments& args, uint32 status) {
    if (status != 0) atomicOr(args.status, status);
}

}  // namespace attnsmith
