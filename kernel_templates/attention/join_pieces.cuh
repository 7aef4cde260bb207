// Joins what CTAs found of a tile whose rows are cut at absolute positions: the state of the part that begins
// with the tile's first key, and the pieces of the parts behind it, folded in the order of their keys.
#pragma once

#include "attention/cuts.cuh"
#include "attention/shares.cuh"

namespace attnsmith {

// Where all of it lies, in shared memory: found once by all threads, and read by each.
template <class Config>
struct PieceList {
    int32 state;                   // the place of the state's first row; negative where no row sees a key
    int32 state_end;               // the first key behind what is in the state
    int32 first;                   // the first piece of the tile, counted from key 0
    int32 places[abi::kMostCuts];  // of each piece's first row, where it has one

    // By all who join, and a barrier behind it. `own`: the part of this CTA, which has `share`
    // units.
    __device__ void find(const TileRows& tile, const TileParts& parts, const TilePart& own, int32 share,
                         int32 thread, int32 threads) {
        const TileCuts cuts(tile);
        const KeyInterval read = TileMask(tile).read;
        const int32 index = (int32(blockIdx.x) - parts.first) / parts.step;
        const int32 units_of_first = index == 0 ? own.end : own.first - (index - 1) * share;
        if (thread == 0) {
            first = read.first / cuts.length;
            if (read.is_empty()) state = -1;
        }
#pragma unroll 1
        for (int32 p = thread; p < parts.count; p += threads) {
            const int32 end = units_of_first + p * share;
            const KeyInterval keys =
                cuts.keys_of({p == 0 ? 0 : end - share, min(end, own.units), own.units}, read);
            if (keys.is_empty()) continue;
            const int32 place = place_of_part<Config>(tile.args, parts.cta(p), p == 0);
            if (cuts.begin_with(keys, read)) {
                state = place;
                state_end = keys.end;
                continue;
            }
#pragma unroll 1
            for (int32 key = keys.first, i = 0; key < min(keys.end, read.end); key += cuts.length, ++i)
                places[key / cuts.length - read.first / cuts.length] = place + i * tile.args.share_rows;
        }
    }
};

// A tile's rows from its pieces. `memory`: shared, of which nobody needs what is there. `own`: the part of
// this CTA, which has `share` units.
template <class Config, int Alignment, class Tile, class Joiners>
__device__ void join_pieces(const Tile& tile, const TileParts& parts, const TilePart& own, int32 of_cta,
                            int32 share, char* memory, const Joiners& joiners) {
    const abi::AttentionArguments& args = tile.args;
    static_assert(sizeof(PieceList<Config>) <= abi::kPieceListBytes);
    PieceList<Config>& list = *reinterpret_cast<PieceList<Config>*>(memory);
    const Epilogue<Config, Alignment> epilogue{args, tile.sequence};
    constexpr int kColumns = abi::kPiecesJoining.columns;  // two threads store theirs together
    static_assert(kColumns == 4);
    constexpr int kChunks = Config::head_dim_vo / kColumns;
    constexpr int kAtOnce = abi::kPiecesJoining.at_once;
    const auto join_item = [&](int32 item, bool is_item, bool is_first) {
        if (is_first) {
            list.find(tile, parts, own, share, joiners.thread, joiners.kThreads);
            joiners.wait();
        }
        if (!is_item) return;
        const int32 in_tile = item / kChunks, column = item % kChunks * kColumns;
        const PackedRow row = tile.row(in_tile);
        const KeyInterval seen = visible_keys(args, tile.sequence, row.token);
        const int32 length = abi::cut_length(seen.end);
        // The state first, then the pieces behind it that have keys of the row.
        const int32 first = max(list.state_end, seen.first) / length - list.first;
        const int32 end = seen.end > list.state_end ? (seen.end - 1) / length + 1 - list.first : first;
        float maximum = -infinity(), sum = 0.0f;
        float o[kColumns] = {};
#pragma unroll 1
        for (int32 next = first - 1; list.state >= 0 && next < end; next += kAtOnce) {
            float2 ml[kAtOnce];
            float4 found[kAtOnce];
#pragma unroll
            for (int p = 0; p < kAtOnce; ++p) {
                const int32 piece = next + p;
                ml[p] = make_float2(-infinity(), 0.0f);
                found[p] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (piece >= end) continue;
                const int64 at = int64(piece < first ? list.state : list.places[piece]) + in_tile;
                ml[p] = reinterpret_cast<const float2*>(args.partial_ml)[at];
                found[p] =
                    *reinterpret_cast<const float4*>(args.partial_o + at * Config::head_dim_vo + column);
            }
#pragma unroll
            for (int p = 0; p < kAtOnce; ++p) {
                const FoldWeights weights(maximum, ml[p].x, ml[p].y != 0.0f, args.scale_log2);
                const float values[kColumns] = {found[p].x, found[p].y, found[p].z, found[p].w};
                maximum = weights.maximum;
                sum = weights.fold(sum, ml[p].y);
#pragma unroll
                for (int c = 0; c < kColumns; ++c) o[c] = weights.fold(o[c], values[c]);
            }
        }
        // Neighbouring threads have the same row.
        float eight[8];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
            eight[c] = o[c];
            eight[c + kColumns] = __shfl_xor_sync(3u << (threadIdx.x % 32 & ~1u), o[c], 1);
        }
        if (threadIdx.x % 2 == 0 && tile.has_head(row))
            epilogue.store_eight(row, -1, column, eight, maximum, sum);
    };
    const int32 rounds = ceil_div(abi::most_pieces(own.units * Config::tile_kv), kAtOnce);
    joiners.template join<Config::tile_q, kChunks>(tile, parts, own, of_cta, rounds, join_item);
}

}  // namespace attnsmith
