// Equal shares of a launch's keys, one a CTA. Each CTA finds its own from the lengths that it reads: nothing
// is planned on the host, and no length is copied there.
//
//   Work is a line of units, each a block of keys: of the first sequence its first KV head, of this its query
//   tiles, of each its units; then the next head, and the next sequence. Share c is units c * share ...
//   (c + 1) * share - 1: the end of one tile, whole tiles, and the start of another.
//
//     tile    A A A A A A A B B C C C C C C C C C C D D D
//     share   0 0 0 0 0 0 1 1 1 1 1 1 2 2 2 2 2 2 3 3 3 3
//
//   So the parts of a tile are neighbouring CTAs', and a CTA has at most two that are not the whole tile.
//   What it finds there goes to the workspace, where a CTA has two places: the first for the end of a tile
//   that a CTA before it began, and the last for the start of one that others go on with. When the last of
//   them has done its part, all are joined in their order (TileParts). Where a tile ends with the share
//   nothing is joined. (With absolute cuts the first is as many as a part has pieces, attention/cuts.cuh.)
//
//   A tile that a CTA goes on to costs it a start, in which it waits for lengths, for pages and for the first
//   keys, one after the other. So where tiles differ each has some places for its start in front of its
//   units, and a CTA of many short tiles has fewer keys. A share that ends in a start ends before the tile.
//
//   KV heads may be parts of one, whose tiles read the same keys (the wgmma kernel divides large groups).
//   Then so many lines lie abreast, one for each part, and so many neighbouring CTAs have the same share of
//   each: what one of them reads is in L2 for the others.
//
//   All tiles of a sequence have as many units, those of its last tile: with masks under which other tiles
//   have fewer blocks, or more, a unit is a part of a block, or several (TilePart). So it is where there
//   would be too many units to count them in 32 bits.
#pragma once

#include "abi/attention_share.h"
#include "attention/join_parts.cuh"
#include "attention/mask.cuh"

namespace attnsmith {

// A tile, and what is done of it.
struct TileWork {
    Sequence sequence;
    int32 kv_head, first_row;
    TilePart part;
};

__device__ inline int32 ceil_div(uint32 a, uint32 b) { return int32((a + b - 1) / b); }

// First row among the partial results of what CTA `cta` finds of a tile that it begins, or goes on with.
template <class Config>
__device__ int32 place_of_part(const abi::AttentionArguments& args, int32 cta, bool begins) {
    if constexpr (Config::absolute_cuts)
        return (cta * args.share_places + (begins ? args.share_places - 1 : 0)) * args.share_rows;
    else
        return (2 * cta + begins) * Config::tile_q;
}

// The parts of a tile that several CTAs have. Whoever of these is there when the last part is done joins a
// slice of the rows, and then the next that nobody has, so that a tile of many rows and parts does not wait
// for one CTA. The bits do not depend on who is there: a row is joined by one CTA from all parts, in their
// order.
//
// A tile's word counts the CTAs that have done their parts, and from bit 16 on the slices that are taken. Who
// takes the last one makes it zero, for the next launch.
struct TileParts {
    int32 first, count;  // of the CTAs, and so of the parts
    int32 step;          // from one of these CTAs to the next

    static constexpr int32 kNoSlice = -1;
    static constexpr uint32 kSlice = 1u << 16;
    static_assert(abi::kMostShares < kSlice);
    // How often a CTA that has nothing else to do looks for the others' parts, which takes it some 20 us.
    // Nothing depends on it: the last to come takes all slices that nobody else does.
    static constexpr int kLooks = 32;

    TileParts() = default;
    __device__ TileParts(const TilePart& part, int32 share, int32 abreast) : step(abreast) {
        const int32 before = ceil_div(part.first, share);  // CTAs with parts before this one's
        first = int32(blockIdx.x) - before * step;
        count = before + 1 + ceil_div(part.units - part.end, share);
    }
    __device__ int32 cta(int32 part) const { return first + part * step; }

    // By one thread, behind a barrier for those who have stored this CTA's part: the slice that it is to
    // join. `of_cta`: which of the tiles that a CTA has a word for. `waits`: if others have still to do their
    // parts.
    __device__ int32 arrive(const abi::AttentionArguments& args, int32 of_cta, int32 slices,
                            bool waits) const {
        uint32* const word = args.status + abi::kArrivals + of_cta;
        __threadfence();
        const uint32 earlier = atomicAdd(word, 1), arrived = earlier + 1;
        if (earlier >= uint32(count)) report(args, abi::kStatusWorkspaceNotZeroed);
        if (slices == 1) {
            if (arrived != uint32(count)) return kNoSlice;
            *word = 0;
            __threadfence();
            return 0;
        }
        if (arrived == uint32(count)) return take(word, arrived, slices);
        if (!waits) return kNoSlice;
#pragma unroll 1
        for (int look = 0; look < kLooks; ++look) {
            __nanosleep(100);
            const uint32 seen = atomicAdd(word, 0);
            if (seen % kSlice == uint32(count)) return take(word, seen, slices);
            if (seen < arrived) break;  // all slices are taken
        }
        return kNoSlice;
    }

    // By the same thread: the next one.
    __device__ int32 next_slice(const abi::AttentionArguments& args, int32 of_cta, int32 slices) const {
        uint32* const word = args.status + abi::kArrivals + of_cta;
        return take(word, atomicAdd(word, 0), slices);
    }

  private:
    __device__ int32 take(uint32* word, uint32 seen, int32 slices) const {
        for (;;) {
            const int32 slice = int32(seen / kSlice);
            if (seen % kSlice != uint32(count) || slice >= slices) return kNoSlice;
            const uint32 found = atomicCAS(word, seen, slice + 1 == slices ? 0 : seen + kSlice);
            if (found == seen) break;
            seen = found;
        }
        __threadfence();
        return int32(seen / kSlice);
    }
};

// The threads that join a tile's rows: those of a CTA, or of a warpgroup that has rows of its own.
template <int Threads, class Wait>
struct Joiners {
    static constexpr int kThreads = Threads;
    int32 thread;
    int32& slice;  // shared: what they are at
    Wait wait;     // a barrier of theirs

    // Calls join_item(i, whether there is an item i, whether it is the first call) for each of the items that
    // this CTA is to do: ItemsOfRow of each of at most MostRows. `rounds`: how often an item waits for L2.
    template <int MostRows, int ItemsOfRow, class Join>
    __device__ void join(const TileRows& tile, const TileParts& parts, const TilePart& own, int32 of_cta,
                         int32 rounds, const Join& join_item) const {
        constexpr bool kHasSlices = MostRows * ItemsOfRow > abi::kTurnsOfOne * Threads;
        const int32 items = min(tile.count, tile.sequence.rows(tile.args) - tile.first) * ItemsOfRow;
        const int32 all_turns = ceil_div(items, Threads);
        const int32 doubled = abi::join_slice_log2(rounds);
        const int32 slices = kHasSlices ? ((all_turns - 1) >> doubled) + 1 : 1;
        wait();  // the part is in the workspace
        // Who leaves a tile to others does so at the end of its share.
        if (thread == 0) slice = parts.arrive(tile.args, of_cta, slices, kHasSlices && own.end < own.units);
        bool is_first = true;
#pragma unroll 1
        for (;;) {
            wait();
            const int32 mine = slice;
            if (mine < 0) return;
            const int32 end = slices == 1 ? all_turns : (mine + 1) << doubled;
#pragma unroll 1
            for (int32 turn = slices == 1 ? 0 : mine << doubled; turn < end; ++turn) {
                const int32 item = turn * Threads + thread;
                join_item(item, item < items, is_first);
                is_first = false;
            }
            if (slices == 1) return;
            wait();  // all know of it
            if (thread == 0) slice = parts.next_slice(tile.args, of_cta, slices);
        }
    }
};

// `wait`: a barrier of so many threads. `slice`: shared by them.
template <int Threads, class Wait>
__device__ Joiners<Threads, Wait> joiners_of(int32& slice, const Wait& wait) {
    return {int32(threadIdx.x % Threads), slice, wait};
}

// Rows `first_row` ... of a tile that CTAs have parts of.
template <class Config, int Alignment, class Tile, class Joiners>
__device__ void join_rows(const Tile& tile, const TileParts& parts, const TilePart& own, int32 of_cta,
                          int32 first_row, const Joiners& joiners) {
    const Epilogue<Config, Alignment> epilogue{tile.args, tile.sequence};
    constexpr int kChunks = Config::head_dim_vo / abi::kPartsJoining.columns;
    const auto join_item = [&](int32 item, bool is_item, bool) {
        if (!is_item) return;
        const int32 in_tile = item / kChunks, column = item % kChunks * abi::kPartsJoining.columns;
        JoinedColumns joined = join_parts<Config>(tile.args, parts.count, column, [&](int32 p) {
            return int64(place_of_part<Config>(tile.args, parts.cta(p), p == 0) + first_row + in_tile);
        });
        const PackedRow row = tile.row(in_tile);
        if (tile.has_head(row)) epilogue.store_eight(row, -1, column, joined.o, joined.maximum, joined.sum);
    };
    joiners.template join<Config::tile_q, kChunks>(
        tile, parts, own, of_cta, ceil_div(parts.count, abi::kPartsJoining.at_once), join_item);
}

// The way of a CTA through its share, by so many threads.
template <class Config, int Threads>
class Shares {
  public:
    // `rows`: packed query rows of a tile, Config::tile_q or fewer. `lines_abreast`: a divisor of the KV
    // heads.
    __device__ Shares(const abi::AttentionArguments& arguments, abi::ShareState& shared, int32 rows,
                      int32 lines_abreast)
        : args(arguments), state(shared), tile_rows(rows), abreast(lines_abreast) {}

    // What comes first of the share, or next; false where there is no more. By all threads of the block.
    __device__ bool next(TileWork& work, uint32& status) {
        if (is_begun && !divides_keys()) return false;
        abi::SharePosition at{};
        Units units;
        if (is_begun) {
            __syncthreads();  // all are done with the tile, and with what shared memory has of it
            at = state.at[turn];
            if (at.left == 0) return false;
            units = state_units();
            go_on(units, at);
        }
        if ((!is_begun || at.kv_head == heads()) && !find(units, at, status)) return false;
        is_begun = true;
        return take(units, at, work) && work.first_row < work.sequence.rows(args);
    }

    // The same in two parts: the first by all threads of the block, which may have nothing to take, ...
    __device__ void begin(uint32& status) {
        abi::SharePosition at{};
        Units units;
        if (!find(units, at, status) && threadIdx.x == 0) state.at[turn].left = 0;
    }
    // ... then each by one warp, for which it is there in shared memory.
    __device__ bool take_by_warp(TileWork& work) {
        __syncwarp();
        abi::SharePosition at = state.at[turn];
        if (at.left == 0) return false;
        Units units = state_units();
        if (is_begun) {
            go_on(units, at);
            if (at.kv_head == heads()) {
                find_by_warp(units);
                at.kv_head = at.tile = 0;
            }
        }
        is_begun = true;
        __syncwarp();
        return take(units, at, work);
    }

  private:
    static_assert(Threads / 32 <= abi::kMostWarps);

    // A sequence and what it has.
    struct Units {
        Sequence sequence{};
        int32 tiles = 0, of_each = 1;
    };

    const abi::AttentionArguments& args;
    abi::ShareState& state;
    const int32 tile_rows;
    const int32 abreast;
    bool is_begun = false;
    bool turn = false;  // which position is the current one

    // A line has these KV heads; this CTA's number in it, and how many it has.
    __device__ int32 heads() const { return args.kv_heads / abreast; }
    __device__ int32 cta() const { return int32(blockIdx.x) / abreast; }
    __device__ int32 ctas() const { return int32(gridDim.x) / abreast; }

    // Else a tile is a unit, a unit is a share, and every CTA has one.
    __device__ bool divides_keys() const { return args.least_share > 0; }
    // Whether a CTA knows its tile without a look at other sequences: in the grid all have as many.
    __device__ bool is_uniform() const { return !divides_keys() && args.sequence_tiles != 0; }

    // What a sum of units stays at: of lengths that hold to the bounds there are always fewer.
    static constexpr uint32 kTooMany = 1u << 31;

    // Tiles of all KV heads, and their units.
    struct Count {
        uint32 tiles, units;

        __device__ void add(const Count& other) {
            tiles = min(tiles + other.tiles, kTooMany);
            units = min(units + other.units, kTooMany);
        }
        // On the line, with so many for each tile's start.
        __device__ uint32 places(int32 of_start) const {
            return uint32(min(units + uint64(tiles) * of_start, uint64(kTooMany)));
        }
    };

    // A CTA's share of so many places in all, in tiles of `longest` at most. A larger share is taken where
    // the longest tiles end with it then, or with one after it, and where it takes no longer than to go to
    // one tile more and to join it would.
    __device__ int32 share_of(uint32 all, int32 longest) const {
        const int32 share = max(ceil_div(all, ctas()), args.least_share);
        const int32 even =
            share >= longest ? ceil_div(share, longest) * longest : ceil_div(longest, longest / share);
        constexpr int32 kUnitsOfTile = 3;
        return even - share <= kUnitsOfTile ? even : share;
    }

    __device__ Units units_of(int32 batch, uint32& status) const {
        Units units;
        if (batch >= args.batch) return units;
        units.sequence = load_sequence<Config>(args, batch, status);
        const int32 rows = units.sequence.rows(args);
        units.tiles = is_uniform() ? args.sequence_tiles : ceil_div(rows, tile_rows);
        if (!divides_keys() || rows == 0) return units;
        // The last query sees the last key.
        const int32 token = (units.tiles - 1) * tile_rows / args.group;
        const KeyInterval keys{visible_keys(args, units.sequence, token).first, units.sequence.kv_len};
        const KeyInterval blocks = blocks_with<Config::tile_kv>(keys);
        if (!keys.is_empty()) units.of_each = min(blocks.end - blocks.first, args.most_units);
        return units;
    }

    // REQUIRES: keys are divided. Behind the last unit of a tile comes the next tile, and behind the last one
    // of a sequence's last KV head another sequence, which has to be found.
    __device__ void go_on(const Units& units, abi::SharePosition& at) const {
        if (at.unit < units.of_each + state.start_units) return;
        at.unit = 0;
        if (++at.tile < units.tiles) return;
        at.tile = 0;
        ++at.kv_head;
    }

    // False where the share ends with the start of the tile.
    __device__ bool take(const Units& units, const abi::SharePosition& at, TileWork& work) {
        const int32 start = divides_keys() ? state.start_units : 0;
        const int32 done = min(at.left, units.of_each + start - at.unit);
        const int32 first = max(at.unit - start, 0), end = max(at.unit + done - start, 0);
        work.sequence = units.sequence;
        work.kv_head = at.kv_head * abreast + int32(blockIdx.x) % abreast;
        work.first_row = (units.tiles - 1 - at.tile) * tile_rows;
        work.part = {first, end, units.of_each, -1};
        if (end - first < units.of_each)
            work.part.place = place_of_part<Config>(args, blockIdx.x, first == 0);
        turn = !turn;
        if (threadIdx.x % Threads == 0)
            state.at[turn] = {at.left - done, at.kv_head, at.tile, at.unit + done};
        return end > 0;
    }

    // REQUIRES: a sequence behind this one has a tile.
    __device__ void find_by_warp(Units& found) const {
        uint32 ignored = 0;
#pragma unroll 1
        for (int32 batch = found.sequence.batch + 1;; batch += 32) {
            const Units mine = units_of(batch + threadIdx.x % 32, ignored);
            const uint32 with_tiles = __ballot_sync(0xffffffffu, mine.tiles > 0);
            if (with_tiles == 0) continue;
            __syncwarp();  // all lanes have read what is there: a vote orders no memory
            if (threadIdx.x % 32 == __ffs(with_tiles) - 1) show(mine, 0, 0, state.share, state.start_units);
            __syncwarp();
            found = state_units();
            return;
        }
    }

    // The first position of the share, for which all units are counted; else the first of the next sequence
    // that has a tile. And all lengths are looked at by one CTA in any case. False where there is none.
    __device__ bool find(Units& found, abi::SharePosition& at, uint32& status) const {
        const int32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        bool counts = !is_begun && (divides_keys() || blockIdx.x == 0);
        int32 batch = is_begun ? found.sequence.batch + 1 : 0;
        int32 unit = 0;  // that is looked for, counted from sequence `batch` on
        Count counted{};
        int32 longest = 1, share = state.share, start = is_begun ? state.start_units : 0;
        if (!divides_keys()) at.left = 1, unit = cta();
#pragma unroll 1
        for (;;) {
            const bool is_known = is_uniform() && !counts;
            if (is_known) {
                const int32 of_sequence = args.sequence_tiles * heads();
                batch = cta() / of_sequence;
                unit = cta() % of_sequence;
            }
            const Units mine = units_of(is_known ? batch : batch + threadIdx.x, status);
            if (is_known) {
                found = mine;
                at.kv_head = unit / mine.tiles;
                at.tile = unit % mine.tiles;
                return true;
            }
            const uint32 tiles = mine.tiles * heads();
            const Count own{tiles, tiles * mine.of_each};
            // Inclusive scan over the warp, then over the block. Hostile lengths may come to more than there
            // can be.
            Count through = own;
#pragma unroll
            for (int distance = 1; distance < 32; distance *= 2) {
                const Count other{__shfl_up_sync(0xffffffffu, through.tiles, distance),
                                  __shfl_up_sync(0xffffffffu, through.units, distance)};
                if (lane >= distance) through.add(other);
            }
            const int32 warp_longest = int32(__reduce_max_sync(0xffffffffu, uint32(mine.of_each)));
            if (lane == 31) {
                state.warp_tiles[warp] = through.tiles;
                state.warp_units[warp] = through.units;
                state.warp_longest[warp] = warp_longest;
            }
            __syncthreads();
            Count all{};
#pragma unroll
            for (int i = 0; i < Threads / 32; ++i) {
                const Count of_warp{uint32(state.warp_tiles[i]), uint32(state.warp_units[i])};
                if (i < warp) through.add(of_warp);
                all.add(of_warp);
                longest = max(longest, state.warp_longest[i]);
            }
            bool again = false;
            if (counts) {
                counted.add(all);
                counts = batch + Threads < args.batch;
                // Up to so many sequences have been looked at but once.
                again = args.batch > Threads || is_uniform();
                batch = counts ? batch + Threads : 0;
                if (!counts && divides_keys()) {
                    // Where all tiles are alike the line is even without it.
                    start = uint64(counted.tiles) * longest == counted.units ? 0 : args.start_units;
                    const uint32 places = counted.places(start);
                    if (places == kTooMany) status |= abi::kStatusQueryClamped;
                    share = share_of(places, longest + start);
                    const uint64 first = uint64(share) * cta();
                    if (places == kTooMany || first >= places) return false;
                    unit = int32(first);
                    at.left = min(share, int32(places) - unit);
                }
            }
            if (!again && uint32(unit) < all.places(start)) {
                const int32 end = int32(through.places(start)), first = end - int32(own.places(start));
                if (first <= unit && unit < end) show(mine, unit - first, at.left, share, start);
                __syncthreads();
                found = state_units();
                at = state.at[turn];
                return true;
            }
            if (!again) {
                unit -= int32(all.places(start));
                batch += Threads;
                if (batch >= args.batch) return false;
            }
            __syncthreads();
        }
    }

    // A sequence and a unit of it.
    __device__ void show(const Units& found, int32 unit, int32 left, int32 share, int32 start) const {
        state.batch = found.sequence.batch;
        state.q_len = found.sequence.q_len;
        state.kv_len = found.sequence.kv_len;
        state.q_first = found.sequence.q_first;
        state.kv_first = found.sequence.kv_first;
        state.page_row = found.sequence.page_row;
        state.tiles = found.tiles;
        state.units = found.of_each;
        state.share = share;
        state.start_units = start;
        const int32 places = found.of_each + start;
        const int32 tile = unit / places;  // of all KV heads
        state.at[turn] = {left, tile / found.tiles, tile % found.tiles, unit % places};
    }
    __device__ Units state_units() const {
        return {{state.batch, state.q_len, state.kv_len, state.q_first, state.kv_first, state.page_row},
                state.tiles,
                state.units};
    }
};

}  // namespace attnsmith
