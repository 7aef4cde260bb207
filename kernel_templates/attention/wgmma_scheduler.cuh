// The role of a wgmma CTA that finds its tiles.
#pragma once

#include "attention/wgmma_work.cuh"

namespace attnsmith {

// Draws tiles. A stream is a KV head in a split, of a sequence where all sequences have as many tiles; its
// tiles are neighbours, which share its keys in the L2 cache. Where masks or lengths make tiles unequal they
// are drawn by twos, last and first, last but one and second, ..., so that all draws are equally long; in the
// end singly, the long ones of several streams first, so that all CTAs end together. Of up to 32 sequences
// with packed tiles the one with the most keys comes first.
template <class Config>
struct WgmmaScheduler {
    static constexpr int kKeys = Config::tile_kv;

    const abi::WgmmaArguments& all;
    const WgmmaShared<Config>& shared;
    const int32 lane = threadIdx.x % 32;

    __device__ uint32 stream_tiles() const {
        return all.sequence_tiles ? all.sequence_tiles : all.attention.tiles;
    }
    __device__ uint32 sequences() const { return all.sequence_tiles ? all.attention.batch : 1; }
    __device__ int32 tile_rows() const {
        return Config::consumers * all.warpgroup_tokens * all.attention.group;
    }

    __device__ bool is_sorted() const {
        return !all.sequence_tiles && all.attention.batch <= abi::kWgmmaSorted;
    }

    __device__ void run() const {
        if (is_sorted()) sort_sequences();
        uint32 draw = blockIdx.x;
        bool second = false;  // of two
#pragma unroll 1
        for (uint32 works = 0;; go_on(draw, second)) {
            const RingPlace<abi::kWgmmaWorkSlots> place(works);
            Work& work = shared.work(place.slot);
            mbarrier_wait(shared.work_empty(place.slot), place.parity ^ 1);
            const bool is_last = draw >= all.draws;
            if (!is_last && !find(draw, second, work)) continue;
            forget(works);
            if (lane == 0) shared.publish(works, is_last);
            if (is_last) break;
            mbarrier_wait(shared.wanted(), works++ & 1);
        }
        if (blockIdx.x == 0) {
            uint32 status = 0;
            check_lengths<Config>(all.attention, tile_rows(), lane, 32, status);
            report(all.attention, status);
        }
    }

    // A lane keeps what it finds of its sequence in shared memory: it has no register to spare.
    __device__ void sort_sequences() const {
        const abi::AttentionArguments& args = all.attention;
        int32 keys = 0;
        abi::PackedTiles mine{0, 0};
        if (lane < args.batch) {
            uint32 ignored = 0;
            const Sequence sequence = load_sequence<Config>(args, lane, ignored);
            keys = sequence.kv_len;
            mine.count = int32((uint32(sequence.rows(args)) + tile_rows() - 1) / tile_rows());
        }
#pragma unroll 1
        for (int32 other = 0; other < args.batch; ++other) {
            const int32 its_keys = __shfl_sync(0xffffffffu, keys, other);
            const int32 tiles = __shfl_sync(0xffffffffu, mine.count, other);
            if (its_keys > keys || (its_keys == keys && other < lane)) mine.before += tiles;
        }
        shared.sorted(lane) = mine;
    }

    __device__ TilePlace sorted_tile(int32 tile) const {
        const abi::PackedTiles mine = shared.sorted(lane);
        const uint32 owners = __ballot_sync(0xffffffffu, uint32(tile - mine.before) < uint32(mine.count));
        if (owners == 0) return {};
        const int32 owner = __ffs(owners) - 1;
        return {owner, __shfl_sync(0xffffffffu, tile - mine.before, owner),
                __shfl_sync(0xffffffffu, mine.count, owner)};
    }

    // The first draw is the CTA's own; the others go to whoever asks first.
    __device__ void go_on(uint32& draw, bool& second) const {
        second = draw < all.paired_draws && !second;
        if (second) return;
        if (gridDim.x >= all.draws) {
            draw = all.draws;
            return;
        }
        uint32 count = 0;
        if (lane == 0) {
            uint32* const counter = all.attention.status + abi::kItemCounter;
            count = atomicAdd(counter, 1);
            // Every CTA asks once in vain: this was the last one, and the next launch begins at 0.
            if (count == all.draws - 1) *counter = 0;
        }
        draw = gridDim.x + __shfl_sync(0xffffffffu, count, 0);
    }

    // False if there is nothing to do.
    __device__ bool find(uint32 draw, bool second, Work& found) const {
        const abi::AttentionArguments& args = all.attention;
        __syncwarp();  // all lanes are done with what the slot held of a draw without work
        const uint32 tiles = stream_tiles(), twos = (tiles + 1) / 2;
        uint32 stream, tile;  // from the stream's last one on
        if (draw < all.paired_draws) {
            stream = draw / twos;
            tile = draw - stream * twos;
            if (second) {
                const uint32 other = tiles - 1 - tile;
                if (other == tile) return false;
                tile = other;
            }
        } else {
            const uint32 single = draw - all.paired_draws;
            const uint32 round = single / (all.mixed_streams * tiles);
            const uint32 in_round = single - round * (all.mixed_streams * tiles);
            tile = in_round / all.mixed_streams;
            stream =
                all.paired_draws / twos + round * all.mixed_streams + in_round - tile * all.mixed_streams;
        }
        TilePlace place;
        if (all.sequence_tiles) {
            place = {int32(stream / args.kv_heads % sequences()), int32(tile), all.sequence_tiles};
        } else if (is_sorted()) {
            place = sorted_tile(int32(tile));
        } else {
            place = search_tile<Config>(args, int32(tile), tile_rows());
        }
        if (lane == 0) {
            found.kv_head = int32(stream % args.kv_heads);
            found.stored_head = found.kv_head / all.kv_head_shares;
            found.split = int32(stream / args.kv_heads / sequences());
        }
        uint32 status = 0;
        Sequence sequence;
        int32 first_row;
        const bool has_rows = load_tile<Config>(args, place, tile_rows(), sequence, first_row, status);
        report(args, status);
        if (!has_rows) return false;
        if (lane == 0) {
            found.sequence = sequence;
            found.first_token = first_row / args.group;
        }
        __syncwarp();  // what is in the slot need not stay in registers, of which a producer has few
        TileKeys keys(found.rows(all, 0, Config::consumers), found.split);
        if (keys.end <= keys.first) {
            // No row looks at the keys of this split, so the merge does not either.
            if (args.splits > 1) return false;
            keys = TileKeys::nothing();
        }
        // Where no key is seen there is a block all the same, which nobody attends to.
        KeyBlocks blocks = blocks_of<kKeys>(keys);
        blocks.end = max(blocks.end, blocks.first + 1);
        if (lane == 0) {
            found.keys = keys;
            found.blocks = blocks;
        }
        // By the lane that hands the work over: who else writes it is ordered by the warp's convergence
        // alone.
        const OwnBlocks mine = own_blocks(found, blocks);
#pragma unroll
        for (int32 warpgroup = 0; warpgroup < Config::consumers; ++warpgroup) {
            const OwnBlocks its{__shfl_sync(0xffffffffu, mine.first, warpgroup),
                                __shfl_sync(0xffffffffu, mine.end, warpgroup),
                                __shfl_sync(0xffffffffu, mine.plain_first, warpgroup),
                                __shfl_sync(0xffffffffu, mine.plain_end, warpgroup)};
            if (lane == 0) found.own[warpgroup] = its;
        }
        return true;
    }

    // Of the consumer warpgroup `lane`; of lanes beyond them nothing is asked.
    __device__ OwnBlocks own_blocks(const Work& work, const KeyBlocks& all_blocks) const {
        const RowTile tile = work.rows(all, lane, 1);
        if (tile.first >= work.sequence.rows(all.attention)) return {all_blocks.first, all_blocks.first};
        const TileKeys keys(tile, work.split);
        if (keys.end <= keys.first) return {all_blocks.first, all_blocks.first};
        const KeyBlocks blocks = blocks_of<kKeys>(keys);
        return {blocks.first, blocks.end, (keys.seen_by_all + kKeys - 1) / kKeys, keys.seen_until / kKeys};
    }
};

}  // namespace attnsmith
