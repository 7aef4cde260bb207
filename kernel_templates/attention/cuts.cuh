// Rows whose keys are cut at absolute positions (abi/attention_cuts.h): the softmax starts anew behind a cut,
// and what was found before it is folded into the row's state. The state after the last cut is the row.
//
//   keys        |  piece 0   |  piece 1   |  piece 2   |  piece 3 ...
//   state       0 -> fold(., 0) -> fold(., 1) -> fold(., 2) -> ...
//
//   A CTA that has a tile from its first key on folds as it goes. One that has a later part of it cannot: it
//   leaves each piece in a place of its own, and when the last CTA has done its part they are folded in
//   order. Both do the same arithmetic, operation by operation: multiplications that a compiler might merge
//   with an addition in one place and not in another are spelled out.
#pragma once

#include "abi/attention_cuts.h"
#include "attention/epilogue.cuh"
#include "attention/mask.cuh"
#include "common/fragment.cuh"

namespace attnsmith {

// What a state and a piece behind it weigh in the state that follows.
struct FoldWeights {
    float maximum;
    float state, piece;
    bool has_keys;

    // By their maxima. `sees_keys`: whether the row saw any of the piece; else the state stays as it is, and
    // what is said to have been found may be anything.
    __device__ FoldWeights(float of_state, float of_piece, bool sees_keys, float scale_log2)
        : has_keys(sees_keys) {
        maximum = has_keys ? fmaxf(of_state, of_piece) : of_state;
        const float reference = maximum == -infinity() ? 0.0f : maximum;
        state = exp2_approx(__fmul_rn(of_state - reference, scale_log2));
        piece = has_keys ? exp2_approx(__fmul_rn(of_piece - reference, scale_log2)) : 0.0f;
    }

    __device__ float fold(float of_state, float of_piece) const {
        return fmaf(piece, has_keys ? of_piece : 0.0f, __fmul_rn(state, of_state));
    }
};

// Whether what a row of this token has found is cut before `key`.
__device__ inline bool is_cut_before(int32 key, const abi::AttentionArguments& args, const Sequence& sequence,
                                     int32 token) {
    return key % abi::cut_length(visible_keys(args, sequence, token).end) == 0;
}

// The cuts of a tile of query rows.
struct TileCuts {
    int32 length;     // of the last row's pieces
    bool are_shared;  // by all rows; else CTAs do not divide the tile

    TileCuts() = default;
    __device__ explicit TileCuts(const TileRows& tile) {
        const int32 last_row = min(tile.first + tile.count, tile.sequence.rows(tile.args)) - 1;
        length = length_of(tile, last_row);
        are_shared = length_of(tile, tile.first) == length;
    }

    // Keys of a part of the tile, of which rows see `read`: whole pieces.
    __device__ KeyInterval keys_of(const TilePart& part, const KeyInterval& read) const {
        if (read.is_empty()) return {0, 0};
        const int32 keys = are_shared ? length : abi::kUnbounded;
        const int32 first = read.first / keys, count = (read.end - 1) / keys + 1 - first;
        const int64 end = int64(first + part.blocks_before(part.end, count)) * keys;
        return {(first + part.blocks_before(part.first, count)) * keys,
                int32(min(end, int64(abi::kUnbounded)))};
    }

    // Whether what is found of these keys, a part's, is folded as they go by: nothing comes before them.
    __device__ bool begin_with(const KeyInterval& keys, const KeyInterval& read) const {
        return keys.first <= read.first;
    }

  private:
    static __device__ int32 length_of(const TileRows& tile, int32 row) {
        return abi::cut_length(visible_keys(tile.args, tile.sequence, row / tile.args.group).end);
    }
};

// Where a CTA leaves what it finds of a part of a tile whose rows are cut.
struct PartPlaces {
    int32 place;       // of the first row of the first piece, or of all of them folded
    int32 length = 0;  // of pieces that have places of their own; 0: they are folded
    int32 first = 0;   // of these, counted from key 0
    int32 rows = 0;    // from one place to the next

    PartPlaces() = default;
    // Reads no others of the tile's keys than the part's.
    __device__ PartPlaces(const TileRows& tile, const TilePart& part, TileMask& mask) : place(part.place) {
        if (part.is_whole() || mask.read.is_empty()) return;
        const TileCuts cuts(tile);
        const KeyInterval keys = cuts.keys_of(part, mask.read);
        if (!keys.is_empty() && !cuts.begin_with(keys, mask.read)) {
            length = cuts.length;
            first = keys.first / length;
            rows = tile.args.share_rows;
        }
        mask.keep(keys);
    }

    __device__ bool are_apart() const { return length > 0; }
    // The place of the piece that has the key before this one.
    __device__ int32 before(int32 key) const {
        return are_apart() ? place + ((key - 1) / length - first) * rows : place;
    }
};

// The place of a part whose rows are not cut: one for all its keys.
struct OnePlace {
    int32 place;
    __device__ int32 before(int32) const { return place; }
};

// Where the part's results go. The mask reads no other keys than the part's.
template <class Config>
__device__ auto places_of_part(const TileRows& tile, const TilePart& part, TileMask& mask) {
    if constexpr (Config::absolute_cuts) {
        return PartPlaces(tile, part, mask);
    } else {
        mask.keep<Config::tile_kv>(part);
        return OnePlace{part.place};
    }
}

// The state of a thread's two rows of sums, whose columns four lanes have: in shared memory, so that few
// registers are kept from one cut to the next, or none where there is room for the rows' maxima and sums as
// well. By whole warps: `Warps` have rows.
template <class Sums, int Warps, bool SumsInRegisters>
struct FoldedRows {
    static constexpr int kThreads = Warps * 32;
    static constexpr int kPairs = Sums::kRows * Sums::kColumns / 2;  // of a thread
    static constexpr int kBytes = (kPairs * kThreads + Warps * 16) * int(sizeof(float2));

    float2* const memory;  // two columns of O at a time, by threads, then the maximum and the sum of each row
    float2 own[2];         // or these, of this thread's rows

    __device__ explicit FoldedRows(char* start) : memory(reinterpret_cast<float2*>(start)) {}

    // Before the first key.
    __device__ void begin() {
#pragma unroll
        for (int i = 0; i < 2; ++i) set_state(i, make_float2(-infinity(), 0.0f));
        __syncwarp();
    }

    // Where it is cut, what was found of row i since its last cut goes to its state; `sum` is over its lanes.
    __device__ void fold(int i, bool is_cut, const Sums& o, float maximum, float sum, float scale_log2) {
        const float2 before = state(i);
        const FoldWeights weights(before.x, maximum, sum != 0.0f, scale_log2);
        if (is_cut) {
            o.for_each_pair(i, [&](int column, float x, float y) {
                float2& pair = pair_of(i, column);
                pair = folded(pair, before, x, y, weights);
            });
        }
        __syncwarp();
        if (is_cut) set_state(i, make_float2(weights.maximum, weights.fold(before.y, sum)));
        __syncwarp();
    }

    // The state with what was found since the last cut, in the place of that; `sum` is over a row's lanes.
    __device__ void close(Sums& o, float (&maximum)[2], float (&sum)[2], float scale_log2) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float2 before = state(i);
            const FoldWeights weights(before.x, maximum[i], sum[i] != 0.0f, scale_log2);
            o.for_each_pair(i, [&](int column, float& x, float& y) {
                const float2 both = folded(pair_of(i, column), before, x, y, weights);
                x = both.x;
                y = both.y;
            });
            maximum[i] = weights.maximum;
            sum[i] = weights.fold(before.y, sum[i]);
        }
    }

  private:
    __device__ bool has_first_column() const { return threadIdx.x % 4 == 0; }
    // Of row i, the pair that for_each_pair() calls `column`.
    __device__ float2& pair_of(int i, int column) const {
        return memory[(Sums::kRows * (column / Sums::kPairPitch) + i) * kThreads + threadIdx.x % kThreads];
    }
    __device__ float2& shared_state(int i) const {
        const int32 warp = threadIdx.x / 32 % Warps;
        return memory[kPairs * kThreads + warp * 16 + fragment_row(threadIdx.x % 32, i)];
    }
    __device__ float2 state(int i) const { return SumsInRegisters ? own[i] : shared_state(i); }
    // Four lanes have the same.
    __device__ void set_state(int i, const float2& state) {
        if (SumsInRegisters)
            own[i] = state;
        else if (has_first_column())
            shared_state(i) = state;
    }

    // Two columns. Before the row saw a key there are none in memory, and what is there may be anything.
    static __device__ float2 folded(const float2& pair, const float2& before, float x, float y,
                                    const FoldWeights& weights) {
        const float2 found = before.y != 0.0f ? pair : make_float2(0.0f, 0.0f);
        return make_float2(weights.fold(found.x, x), weights.fold(found.y, y));
    }
};

// The same in registers. Each thread has the maxima and sums of its two rows.
template <class Sums>
struct FoldedRegisters {
    float maximum[2] = {-infinity(), -infinity()};
    float sum[2] = {0.0f, 0.0f};
    Sums o = {};

    // As FoldedRows::fold. Values are selected: behind a branch they would be computed ahead of it, into as
    // many registers again.
    __device__ void fold(int i, bool is_cut, const Sums& found, float found_maximum, float found_sum,
                         float scale_log2) {
        const FoldWeights weights(maximum[i], found_maximum, found_sum != 0.0f, scale_log2);
        o.for_each(i, found, [&](float& x, float of_found) { x = is_cut ? weights.fold(x, of_found) : x; });
        maximum[i] = is_cut ? weights.maximum : maximum[i];
        sum[i] = is_cut ? weights.fold(sum[i], found_sum) : sum[i];
    }

    // As FoldedRows::close.
    __device__ void close(Sums& found, float (&found_maximum)[2], float (&found_sum)[2],
                          float scale_log2) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const FoldWeights weights(maximum[i], found_maximum[i], found_sum[i] != 0.0f, scale_log2);
            found.for_each(i, o, [&](float& x, float of_state) { x = weights.fold(of_state, x); });
            found_maximum[i] = weights.maximum;
            found_sum[i] = weights.fold(sum[i], found_sum[i]);
        }
    }
};

// The states of several tiles of 16 rows; each warp has its columns of all.
template <class Sums, int Warps, int RowTiles, bool InRegisters>
struct FoldedTiles {
    static constexpr int kBytes = 0;

    FoldedRegisters<Sums> states[RowTiles];

    __device__ explicit FoldedTiles(char*) {}
    __device__ void begin() const {}
    __device__ FoldedRegisters<Sums>& of_tile(int t) { return states[t]; }
};
template <class Sums, int Warps, int RowTiles>
struct FoldedTiles<Sums, Warps, RowTiles, false> {
    using Rows = FoldedRows<Sums, Warps, false>;
    static constexpr int kBytes = RowTiles * Rows::kBytes;

    char* const memory;

    __device__ explicit FoldedTiles(char* start) : memory(start) {}
    __device__ void begin() const {
#pragma unroll
        for (int t = 0; t < RowTiles; ++t) of_tile(t).begin();
    }
    __device__ Rows of_tile(int t) const { return Rows(memory + t * Rows::kBytes); }
};

}  // namespace attnsmith
