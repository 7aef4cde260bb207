// Tiles of the query rows of sequences: finds a tile's sequence and its rows. Attention and merge kernels
// share this.
#pragma once

#include "sequences/sequence.cuh"

namespace attnsmith {

// Threads of a CTA that takes part in loads with all of its warps.
template <class Config>
inline constexpr int kThreadsOf = (Config::warps_q * Config::warps_kv + Config::load_warps) * 32;

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

}  // namespace attnsmith
