// The role of a persistent CTA that finds its tiles.
#pragma once

#include "attention/persistent/blocks.cuh"
#include "common/registers.cuh"

namespace attnsmith {

// Draws tiles. A stream is a KV head in a split, of a sequence where all sequences have as many tiles; its
// tiles are neighbours, which share its keys in the L2 cache. Where masks or lengths make tiles unequal they
// are drawn in pairs, last and first, last but one and second, ..., so that all draws are equally long; in
// the end singly, the long ones of several streams first, so that all CTAs end together. Of up to 32
// sequences with packed tiles the one with the most keys comes first.
template <class Config>
struct TileScheduler {
    // A tile of a stream, counted from the stream's last one.
    struct StreamTile {
        uint32 stream, tile;
    };

    const abi::PersistentArguments& args;
    const PersistentPipeline<Config>& pipeline;
    const int32 lane = threadIdx.x % 32;

    __device__ uint32 stream_tiles() const {
        return args.attention.sequence_tiles ? args.attention.sequence_tiles : args.attention.tiles;
    }
    __device__ uint32 sequences() const { return args.attention.sequence_tiles ? args.attention.batch : 1; }
    __device__ int32 tile_rows() const { return attnsmith::tile_rows<Config>(args); }

    __device__ bool is_sorted() const {
        return !args.attention.sequence_tiles && args.attention.batch <= abi::kSortedSequences;
    }

    __device__ void run() const {
        using WorkRing = typename PersistentPipeline<Config>::WorkRing;
        if (is_sorted()) sort_sequences();
        uint32 draw = blockIdx.x;
        bool second = false;  // of a pair
#pragma unroll 1
        for (uint32 works = 0;; next_draw(draw, second)) {
            const typename WorkRing::Position at(works);
            WorkTile& work = pipeline.work(at.stage);
            pipeline.work_ring().wait_empty(at);
            const bool is_last = draw >= args.draws;
            if (!is_last && !find(draw, second, work)) continue;
            forget(works);
            if (lane == 0) pipeline.publish(works, is_last);
            if (is_last) break;
            pipeline.next_tile().wait(Phase::of_use(works++));
        }
        if (blockIdx.x == 0) {
            uint32 status = 0;
            check_lengths<Config>(args.attention, lane, 32, status);
            report(args.attention, status);
        }
    }

    // A lane keeps what it finds of its sequence in shared memory: it has no register to spare.
    __device__ void sort_sequences() const {
        const abi::AttentionArguments& attention = args.attention;
        int32 keys = 0;
        abi::PackedTiles mine{0, 0};
        if (lane < attention.batch) {
            uint32 ignored = 0;
            const Sequence sequence = load_sequence<Config>(attention, lane, ignored);
            keys = sequence.kv_len;
            mine.count = int32((uint32(sequence.rows(attention)) + tile_rows() - 1) / tile_rows());
        }
#pragma unroll 1
        for (int32 other = 0; other < attention.batch; ++other) {
            const int32 its_keys = __shfl_sync(0xffffffffu, keys, other);
            const int32 tiles = __shfl_sync(0xffffffffu, mine.count, other);
            if (its_keys > keys || (its_keys == keys && other < lane)) mine.before += tiles;
        }
        pipeline.sorted(lane) = mine;
    }

    __device__ TileIndex sorted_tile(int32 tile) const {
        const abi::PackedTiles mine = pipeline.sorted(lane);
        const uint32 owners = __ballot_sync(0xffffffffu, uint32(tile - mine.before) < uint32(mine.count));
        if (owners == 0) return {};
        const int32 owner = __ffs(owners) - 1;
        return {owner, __shfl_sync(0xffffffffu, tile - mine.before, owner),
                __shfl_sync(0xffffffffu, mine.count, owner)};
    }

    // The first draw is the CTA's own; the others go to whoever asks first.
    __device__ void next_draw(uint32& draw, bool& second) const {
        second = draw < args.paired_draws && !second;
        if (second) return;
        if (gridDim.x >= args.draws) {
            draw = args.draws;
            return;
        }
        uint32 count = 0;
        if (lane == 0) {
            uint32* const counter = args.attention.status + abi::kDrawCounter;
            count = atomicAdd(counter, 1);
            // Every CTA asks once in vain: this was the last one, and the next launch begins at 0.
            if (count == args.draws - 1) *counter = 0;
        }
        draw = gridDim.x + __shfl_sync(0xffffffffu, count, 0);
    }

    // The work of a draw; false if there is nothing to do.
    __device__ bool find(uint32 draw, bool second, WorkTile& found) const {
        __syncwarp();  // all lanes are done with what the stage held of a draw without work
        StreamTile drawn;
        if (!drawn_tile(draw, second, drawn)) return false;
        const TileIndex index = tile_index(drawn);
        if (lane == 0) {
            found.set_head(args, int32(drawn.stream % args.attention.kv_heads));
            found.split = int32(drawn.stream / args.attention.kv_heads / sequences());
        }
        return find_rows(index, found) && find_blocks(found);
    }

    // The tile's keys; false if there is nothing to do.
    __device__ bool find_blocks(WorkTile& found) const {
        TileMask mask(found.rows(args, 0, kRowGroups<Config>));
        mask.keep(keys_of_split(args.attention, found.split));
        // No row looks at the keys of this split, so the merge does not either.
        if (args.attention.splits > 1 && mask.read.is_empty()) return false;
        set_blocks<Config>(args, mask, found);
        return true;
    }

    // False for the second of a pair where that is the first: the middle of an odd number of tiles.
    __device__ bool drawn_tile(uint32 draw, bool second, StreamTile& drawn) const {
        const uint32 tiles = stream_tiles(), pairs = (tiles + 1) / 2;
        if (draw < args.paired_draws) {
            drawn.stream = draw / pairs;
            drawn.tile = draw - drawn.stream * pairs;
            if (!second) return true;
            const uint32 other = tiles - 1 - drawn.tile;
            if (other == drawn.tile) return false;
            drawn.tile = other;
            return true;
        }
        const uint32 single = draw - args.paired_draws;
        const uint32 round = single / (args.mixed_streams * tiles);
        const uint32 in_round = single - round * (args.mixed_streams * tiles);
        drawn.tile = in_round / args.mixed_streams;
        drawn.stream = args.paired_draws / pairs + round * args.mixed_streams + in_round -
                       drawn.tile * args.mixed_streams;
        return true;
    }

    __device__ TileIndex tile_index(const StreamTile& drawn) const {
        if (args.attention.sequence_tiles) {
            return {int32(drawn.stream / args.attention.kv_heads % sequences()), int32(drawn.tile),
                    args.attention.sequence_tiles};
        }
        if (is_sorted()) return sorted_tile(int32(drawn.tile));
        return search_tile<Config>(args.attention, int32(drawn.tile), tile_rows());
    }

    // The tile's sequence and its first token; false if it has no rows.
    __device__ bool find_rows(const TileIndex& index, WorkTile& found) const {
        uint32 status = 0;
        Sequence sequence;
        int32 first_row;
        const bool has_rows =
            load_tile<Config>(args.attention, index, tile_rows(), sequence, first_row, status);
        report(args.attention, status);
        if (!has_rows) return false;
        if (lane == 0) {
            found.sequence = sequence;
            found.first_token = first_row / args.attention.group;
        }
        __syncwarp();  // what is in the stage need not stay in registers, of which a producer has few
        return true;
    }
};

}  // namespace attnsmith
