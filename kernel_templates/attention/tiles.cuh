// Sequences and the tiles of their query rows: finds a tile's sequence and clamps its lengths to the host's
// bounds. Attention and merge kernels share this, so they agree on every length.
#pragma once

#include "abi/attention_arguments.h"

namespace attnsmith {

// Threads of a CTA that takes part in loads with all of its warps.
template <class Config>
inline constexpr int kThreadsOf = (Config::warps_q * Config::warps_kv + Config::load_warps) * 32;

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

// A query head of a token.
struct PackedRow {
    int32 token, head;
    bool valid;  // whether it is one of the tile's and the sequence's
};

// Packed rows first .. first + count - 1 of a sequence and KV head: what of them asks for no query head.
struct TileRows {
    const abi::AttentionArguments& args;
    const Sequence& sequence;
    int32 kv_head, first, count;
};

// Rows that pack the whole group of the KV head.
struct QueryTile : TileRows {
    // A division: the divisor's product is fewer instructions, but more registers, and some kernels that use
    // all of them would spill (NVRTC 13.0 on sm_100).
    __device__ PackedRow row(int32 in_tile) const {
        const int32 row = first + in_tile;
        const int32 token = int32(uint32(row) / uint32(args.group.value));
        return {token, kv_head * args.group + row - token * args.group,
                in_tile < count && row < sequence.rows(args)};
    }
    // Which of the tile's rows it is.
    __device__ int32 index(const PackedRow& row) const {
        return row.token * args.group + row.head - kv_head * args.group - first;
    }
    // Whether a row of the sequence's is a query head's: here all are.
    __device__ static constexpr bool has_head(const PackedRow&) { return true; }
};

// The query heads of a part of a group: the last part may have fewer than the rows have places for.
struct QueryHeads {
    int32 first, count;
};

// Rows that pack a part of the group.
struct GroupPartTile : TileRows {
    QueryHeads heads;

    __device__ PackedRow row(int32 in_tile) const {
        const int32 row = first + in_tile;
        const int32 token = row / args.group, head = row - token * args.group;
        return {token, heads.first + head,
                in_tile < count && row < sequence.rows(args) && head < heads.count};
    }
    __device__ int32 index(const PackedRow& row) const {
        return row.token * args.group + row.head - heads.first - first;
    }
    __device__ bool has_head(const PackedRow& row) const { return row.head - heads.first < heads.count; }
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

// A sequence's query tile, counted from its last one.
struct TileIndex {
    int32 batch = 0, from_last = 0;
    int32 count = 0;  // of the sequence; 0: there is no such tile
};

// Finds tile `tile`, counted over all sequences, where tiles are packed. Every thread of a warp calls this
// with the same tile.
template <class Config>
__device__ TileIndex search_tile(const abi::AttentionArguments& args, int32 tile, int32 tile_rows) {
    const int32 lane = threadIdx.x % 32;
    int32 before = 0;
    for (int32 base = 0; base < args.batch; base += 32) {
        int64 first;
        uint32 ignored = 0;
        const int32 length = base + lane < args.batch
                                 ? query_length<typename Config::Index>(args, base + lane, first, ignored)
                                 : 0;
        const int32 tiles = int32((uint32(length * args.group) + tile_rows - 1) / tile_rows);
        int32 through = tiles;  // inclusive scan over the warp
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const int32 other = __shfl_up_sync(0xffffffffu, through, distance);
            if (lane >= distance) through += other;
        }
        const uint32 beyond = __ballot_sync(0xffffffffu, before + through > tile);
        if (beyond != 0) {
            const int32 owner = __ffs(beyond) - 1;
            const int32 count = __shfl_sync(0xffffffffu, tiles, owner);
            return {base + owner, tile - before - (__shfl_sync(0xffffffffu, through, owner) - count), count};
        }
        before += __shfl_sync(0xffffffffu, through, 31);
    }
    return {};
}

// The sequence and the first packed row of a tile; false if it has no rows.
template <class Config>
__device__ bool load_tile(const abi::AttentionArguments& args, const TileIndex& index, int32 tile_rows,
                          Sequence& sequence, int32& first_row, uint32& status) {
    if (index.count == 0) return false;
    sequence = load_sequence<Config>(args, index.batch, status);
    first_row = (index.count - 1 - index.from_last) * tile_rows;
    return first_row < sequence.rows(args);
}

// The sequence and the first packed row of query tile `tile`, tiles counted over all sequences; false if
// there is no such tile. Tiles of one sequence come last first: under a causal mask the longest work is
// started first. Every thread of a warp calls this with the same tile.
template <class Config>
__device__ bool find_tile(const abi::AttentionArguments& args, int32 tile, int32 tile_rows,
                          Sequence& sequence, int32& first_row, uint32& status) {
    TileIndex index;
    if (args.sequence_tiles != 0) {
        index = {tile / args.sequence_tiles, tile % args.sequence_tiles, args.sequence_tiles};
    } else {
        index = search_tile<Config>(args, tile, tile_rows);
    }
    return load_tile<Config>(args, index, tile_rows, sequence, first_row, status);
}

// By `threads` threads of one block, for the status: where tiles are packed, a sequence without one has no
// block to speak for it.
template <class Config>
__device__ void check_lengths(const abi::AttentionArguments& args, int32 thread, int32 threads,
                              uint32& status) {
    if (args.sequence_tiles != 0) return;
#pragma unroll 1
    for (int32 b = thread; b < args.batch; b += threads) load_sequence<Config>(args, b, status);
}

__device__ inline void report(const abi::AttentionArguments& args, uint32 status) {
    if (status != 0) atomicOr(args.status, status);
}

}  // namespace attnsmith
