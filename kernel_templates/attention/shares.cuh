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
//   What it finds there goes to the workspace: first place 2 * cta, for the end of a tile that a CTA before
//   it began, and then 2 * cta + 1, for the start of one that others go on with. The CTA that is the last to
//   have done its part joins them, in their order (TileParts). Where a tile ends with the share nothing is
//   joined.
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
__device__ int32 place_of_part(int32 cta, bool begins) {
    return (2 * cta + begins) * Config::tile_q;
}

// The parts of a tile that several CTAs have, and how they are joined.
//
//   The last CTA to have done its part joins all, if they are few. Of many parts with many rows it would read
//   a megabyte while no other CTA has anything to do. These are joined in groups first, each by the last CTA
//   of the group, and then the groups' results are joined in the same way:
//
//     parts    0 1 2 3 4 5 6 7 │ 8 9 10 11 12 13 14 15 │ 16
//     level 0  0               │ 8                     │ 16
//     level 1  O
//
//   A group's result takes the place of its first part. A thread that joins some columns of a row reads these
//   columns alone, but the maximum and the sum of the whole row. So a join reads one set of maxima and sums
//   and writes the other, by turns from level to level. A group of one is joined as well, for its set's sake.
//
//   A group of level n counts its arrivals in the word of CTA first + begin + n, where `begin` is its first
//   part. That CTA is never the last of the tile's, so it has no part of another tile that counts there. Nor
//   do two groups of the tile share a word, as all begin at multiples of kGroup.
struct TileParts {
    int32 first, count;  // of the CTAs, and so of the parts

    TileParts() = default;
    __device__ TileParts(const TilePart& part, int32 share) {
        const int32 before = ceil_div(part.first, share);  // CTAs with parts before this one's
        first = int32(blockIdx.x) - before;
        count = before + 1 + ceil_div(part.units - part.end, share);
    }

    // Joins this CTA's part with those of other CTAs, as far as they are done. `tile`: rows first_row ... of
    // the CTA's tile. `joiners`: the threads that have stored the part of these rows; all of them call this.
    //   kThreads, thread()   how many they are, whole warps, and which one this is
    //   wait()               until all of them are there
    //   count_of(cta)        the word in which they count the arrivals at a CTA
    //   is_last()            a word of shared memory in which one of them tells the others
    template <class Config, int Alignment, class Joiners>
    __device__ void join(const QueryTile& tile, int32 first_row, const Joiners& joiners) const {
        const int32 rows = tile.valid_rows();
        const int32 part = int32(blockIdx.x) - first;
#pragma unroll 1
        for (int32 level = 0;; ++level) {
            const Group group = group_of(part, level, rows * Config::head_dim_vo);
            joiners.wait();  // what this CTA has is in the workspace
            if (joiners.thread() == 0) {
                joiners.is_last() =
                    group.members == 1 ||
                    arrive(tile.args, joiners.count_of(first + group.begin + level), group.members);
            }
            joiners.wait();
            if (!joiners.is_last()) return;
            join_group<Config, Alignment, Joiners::kThreads>(tile, first_row, rows, group, joiners.thread());
            if (group.is_all) return;
        }
    }

  private:
    static constexpr int32 kGroupBits = 3, kGroup = 1 << kGroupBits;
    // The cost of another level, its arrival and its waits, as floats that a CTA could read from L2
    // meanwhile. Groups are made where they save the last CTA more than that.
    static constexpr int32 kArrivalFloats = 16384;

    // Results of a level that are joined into one: those of parts begin, begin + 2^apart, ...
    struct Group {
        int32 level, apart;
        int32 begin, members;
        bool is_all;  // the tile's
    };

    // The group that has a part. Each result has so many floats.
    __device__ Group group_of(int32 part, int32 level, int32 floats) const {
        const int32 apart = level * kGroupBits;
        const int32 results = (count + (1 << apart) - 1) >> apart;
        const int32 groups = (results + kGroup - 1) / kGroup;
        if ((results - kGroup - groups) * floats <= kArrivalFloats) return {level, apart, 0, results, true};
        const int32 in_order = part >> (apart + kGroupBits);
        return {level, apart, in_order << (apart + kGroupBits), min(kGroup, results - in_order * kGroup),
                false};
    }

    // By one thread, behind a barrier for those who have stored what this CTA has: whether it was the last of
    // `members`. `count`: the word in which these count.
    static __device__ bool arrive(const abi::AttentionArguments& args, int32 count, int32 members) {
        __threadfence();
        uint32* const arrivals = args.status + abi::kArrivals + count;
        const uint32 earlier = atomicAdd(arrivals, 1);
        const bool is_last = earlier == uint32(members - 1);
        if (is_last) *arrivals = 0;  // for the next launch
        if (earlier >= uint32(members)) report(args, abi::kStatusWorkspaceNotZeroed);
        __threadfence();
        return is_last;
    }

    // Joins the group's rows, eight columns a thread. Where that would leave threads without work,
    // neighbouring lanes divide the members among them.
    template <class Config, int Alignment, int Threads>
    __device__ void join_group(const QueryTile& tile, int32 first_row, int32 rows, const Group& group,
                               int32 thread) const {
        const Epilogue<Config, Alignment> epilogue{tile.args, tile.sequence};
        constexpr int32 kChunks = Config::head_dim_vo / 8;
        const int32 items = rows * kChunks;
        int32 bits = 0;  // of the number of lanes to an item
#pragma unroll 1
        while (bits < 5 && kPartsAtOnce<Config> << bits < group.members && items << (bits + 1) <= Threads)
            ++bits;
        const int32 lanes = 1 << bits, lane = thread % lanes;
        const int32 each = (group.members + lanes - 1) >> bits;
        const int32 mine = min(each, group.members - lane * each);
        const int32 of_lane = first + group.begin + (lane * each << group.apart);  // CTA of its first member
        // Of the lane's member m, which may be the part that begins the tile where it is the lane's first.
        const auto place = [&](int32 m) {
            const bool begins = m == 0 && of_lane == first;
            return place_of_part<Config>(of_lane + (m << group.apart), begins) + first_row;
        };
        // All threads go through the loop equally often, as lanes trade their results in it.
#pragma unroll 1
        for (int32 done = 0; done < items; done += Threads >> bits) {
            const int32 item = done + (thread >> bits);
            const int32 in_tile = item / kChunks, column = item % kChunks * 8;
            JoinedColumns joined =
                join_parts<Config>(tile.args, group.level % abi::kPartialSets, item < items ? mine : 0,
                                   column, [&](int32 m) { return place(m) + in_tile; });
            joined.add_lanes(lanes, tile.args.scale_log2);
            if (item < items && lane == 0) {
                epilogue.store_eight(tile.row(in_tile), group.is_all ? -1 : place(0) + in_tile, column,
                                     joined.o, joined.maximum, joined.sum,
                                     (group.level + 1) % abi::kPartialSets);
            }
        }
    }
};

// The way of a CTA through its share, by so many threads.
template <class Config, int Threads>
class Shares {
  public:
    // `tile_rows`: packed query rows of a tile, Config::tile_q or fewer.
    __device__ Shares(const abi::AttentionArguments& arguments, abi::ShareState& shared, int32 rows)
        : args(arguments), state(shared), tile_rows(rows) {}

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
        if ((!is_begun || at.kv_head == args.kv_heads) && !find(units, at, status)) return false;
        is_begun = true;
        take(units, at, work);
        return work.first_row < work.sequence.rows(args);
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
            if (at.kv_head == args.kv_heads) {
                find_by_warp(units);
                at.kv_head = at.tile = 0;
            }
        }
        is_begun = true;
        __syncwarp();
        take(units, at, work);
        return true;
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
    bool is_begun = false;
    bool turn = false;  // which position is the current one

    // Else a tile is a unit, a unit is a share, and every CTA has one.
    __device__ bool divides_keys() const { return args.least_share > 0; }
    // Whether a CTA knows its tile without a look at other sequences: in the grid all have as many.
    __device__ bool is_uniform() const { return !divides_keys() && tiles_are_uniform(args, tile_rows); }

    // What a sum of units stays at: of lengths that hold to the bounds there are always fewer.
    static constexpr uint32 kTooMany = 1u << 31;

    // Of so many units in all, in tiles of `longest` at most. A larger share is taken where the longest tiles
    // end with it then, or with one after it, and where it takes no longer than to go to one tile more and
    // to join it would.
    __device__ int32 share_of(uint32 all_units, int32 longest) const {
        const int32 share = max(ceil_div(all_units, gridDim.x), args.least_share);
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
        units.tiles = is_uniform() ? most_tiles(args, tile_rows) : ceil_div(rows, tile_rows);
        if (!divides_keys() || rows == 0) return units;
        // The last query sees the last key.
        const int32 token = (units.tiles - 1) * tile_rows / args.group;
        const KeyInterval keys{visible_keys(args, units.sequence, token).first, units.sequence.kv_len};
        const KeyInterval blocks = blocks_with<Config::tile_kv>(keys);
        if (!keys.is_empty()) units.of_each = min(blocks.end - blocks.first, args.most_units);
        return units;
    }

    // Behind the last unit of a tile comes the next tile, and behind the last one of a sequence's last KV
    // head another sequence, which has to be found.
    __device__ void go_on(const Units& units, abi::SharePosition& at) const {
        if (at.unit < units.of_each) return;
        at.unit = 0;
        if (++at.tile < units.tiles) return;
        at.tile = 0;
        ++at.kv_head;
    }

    __device__ void take(const Units& units, const abi::SharePosition& at, TileWork& work) {
        const int32 done = min(at.left, units.of_each - at.unit);
        work.sequence = units.sequence;
        work.kv_head = at.kv_head;
        work.first_row = (units.tiles - 1 - at.tile) * tile_rows;
        work.part = {at.unit, at.unit + done, units.of_each, -1};
        if (done < units.of_each) work.part.place = place_of_part<Config>(blockIdx.x, at.unit == 0);
        turn = !turn;
        if (threadIdx.x % Threads == 0)
            state.at[turn] = {at.left - done, at.kv_head, at.tile, at.unit + done};
    }

    // REQUIRES: a sequence behind this one has a tile.
    __device__ void find_by_warp(Units& found) const {
        uint32 ignored = 0;
#pragma unroll 1
        for (int32 batch = found.sequence.batch + 1;; batch += 32) {
            const Units mine = units_of(batch + threadIdx.x % 32, ignored);
            const uint32 with_tiles = __ballot_sync(0xffffffffu, mine.tiles > 0);
            if (with_tiles == 0) continue;
            if (threadIdx.x % 32 == __ffs(with_tiles) - 1) show(mine, 0, 0, state.share);
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
        uint32 counted = 0;
        int32 longest = 1, share = state.share;
        if (!divides_keys()) at.left = 1, unit = blockIdx.x;
#pragma unroll 1
        for (;;) {
            const bool is_known = is_uniform() && !counts;
            if (is_known) {
                const int32 of_sequence = most_tiles(args, tile_rows) * args.kv_heads;
                batch = int32(blockIdx.x) / of_sequence;
                unit = int32(blockIdx.x) % of_sequence;
            }
            const Units mine = units_of(is_known ? batch : batch + threadIdx.x, status);
            if (is_known) {
                found = mine;
                at.kv_head = unit / mine.tiles;
                at.tile = unit % mine.tiles;
                return true;
            }
            const int32 units = mine.tiles * mine.of_each * args.kv_heads;
            // Inclusive scan over the warp, then over the block. Hostile lengths may come to more than there
            // can be.
            uint32 through = units;
#pragma unroll
            for (int distance = 1; distance < 32; distance *= 2) {
                const uint32 other = __shfl_up_sync(0xffffffffu, through, distance);
                if (lane >= distance) through = min(through + other, kTooMany);
            }
            const int32 warp_longest = int32(__reduce_max_sync(0xffffffffu, uint32(mine.of_each)));
            if (lane == 31) {
                state.warp_units[warp] = through;
                state.warp_longest[warp] = warp_longest;
            }
            __syncthreads();
            uint32 all = 0;
#pragma unroll
            for (int i = 0; i < Threads / 32; ++i) {
                if (i < warp) through = min(through + state.warp_units[i], kTooMany);
                all = min(all + state.warp_units[i], kTooMany);
                longest = max(longest, state.warp_longest[i]);
            }
            bool again = false;
            if (counts) {
                counted = min(counted + all, kTooMany);
                counts = batch + Threads < args.batch;
                // Up to so many sequences have been looked at but once.
                again = args.batch > Threads || is_uniform();
                batch = counts ? batch + Threads : 0;
                if (!counts && divides_keys()) {
                    if (counted == kTooMany) status |= abi::kStatusQueryClamped;
                    share = share_of(counted, longest);
                    const uint64 first = uint64(share) * blockIdx.x;
                    if (counted == kTooMany || first >= counted) return false;
                    unit = int32(first);
                    at.left = min(share, int32(counted) - unit);
                }
            }
            if (!again && uint32(unit) < all) {
                const int32 first = int32(through) - units;
                if (first <= unit && unit < through) show(mine, unit - first, at.left, share);
                __syncthreads();
                found = state_units();
                at = state.at[turn];
                return true;
            }
            if (!again) {
                unit -= all;
                batch += Threads;
                if (batch >= args.batch) return false;
            }
            __syncthreads();
        }
    }

    // A sequence and a unit of it.
    __device__ void show(const Units& found, int32 unit, int32 left, int32 share) const {
        state.batch = found.sequence.batch;
        state.q_len = found.sequence.q_len;
        state.kv_len = found.sequence.kv_len;
        state.q_first = found.sequence.q_first;
        state.kv_first = found.sequence.kv_first;
        state.page_row = found.sequence.page_row;
        state.tiles = found.tiles;
        state.units = found.of_each;
        state.share = share;
        const int32 tile = unit / found.of_each;  // of all KV heads
        state.at[turn] = {left, tile / found.tiles, tile % found.tiles, unit % found.of_each};
    }
    __device__ Units state_units() const {
        return {{state.batch, state.q_len, state.kv_len, state.q_first, state.kv_first, state.page_row},
                state.tiles,
                state.units};
    }
};

}  // namespace attnsmith
