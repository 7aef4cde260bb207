// Whether two tokens of a launch write one slot. Every pair of tokens is compared, by warps behind those that
// write: nothing is kept from one launch to the next, so there is nothing to clear, and a graph's replay
// compares what its slots are by then. The pairs grow with the square of the tokens (docs/numerics.md says
// what that costs); few tokens are compared while the others are written.
//
// A warp has a pair of tiles of tokens, each a lane's few in registers. Tiles stand in a circle, and a warp
// takes a tile and one that is behind it by half of the circle at most: so each pair of tiles has its turn,
// with as much to do for every warp.
#pragma once

#include "append/place.cuh"

namespace attnsmith {

// The lower half of a token's slot, which is enough to say that slots differ. Those of no slot of the cache
// differ from all others but by accident, which is looked into.
template <class Config>
__device__ uint32 slot_digest(const abi::AppendArguments& args, int32 token, uint32 of_none) {
    if (token >= args.batch.q_tokens) return of_none;
    const int64 slot = token_value<typename Config::Index>(args.slot_mapping, token, args.slots_are_64);
    return slot < 0 || slot >= args.slots ? of_none : uint32(slot);
}

// Whether both are written, and to one slot: equal digests only say that they may be.
template <class Config>
__device__ bool write_one_slot(const abi::AppendArguments& args, int32 first, int32 second) {
    if (first >= args.batch.q_tokens || second >= args.batch.q_tokens) return false;
    uint32 told = 0;  // by the warps that write
    const TokenPlace a = place_of<Config>(args, first, told), b = place_of<Config>(args, second, told);
    return a.is_written && b.is_written && a.outer == b.outer && a.offset == b.offset;
}

// Tells of a slot that is written twice. `hits[j]` has the turns in which a lane has met a token of the other
// tile's j-th 32, `mine` is the first of its own. No loop is unrolled: hits are rare, and code takes time to
// compile.
template <class Config, int Each>
__device__ void look_into_hits(const abi::AppendArguments& args, int32 mine, int32 others,
                               const uint32 (&hits)[Each]) {
    const int32 lane = threadIdx.x % 32;
#pragma unroll 1
    for (int32 j = 0; j < Each; ++j) {
        uint32 turns = 0;
#pragma unroll
        for (int k = 0; k < Each; ++k) turns |= k == j ? hits[k] : 0;
#pragma unroll 1
        for (; turns != 0; turns &= turns - 1) {
            const int32 turn = __ffs(int(turns)) - 1, other = others + j * 32 + (lane + turn) % 32;
#pragma unroll 1
            for (int32 i = 0; i < Each; ++i) {
                const int32 own = mine + i * 32;
                if (own == other || !write_one_slot<Config>(args, own, other)) continue;
                return report(args.batch, abi::kStatusSlotWrittenTwice);
            }
        }
    }
}

template <class Config>
__device__ void check_slots(const abi::AppendArguments& args, int32 pair) {
    constexpr int kEach = abi::kSlotTile / 32;
    const int32 lane = threadIdx.x % 32;
    const int32 mine = pair / args.slot_pairs, distance = pair - mine * args.slot_pairs;
    const int32 beyond = mine + distance;
    const int32 others = beyond < args.slot_tiles ? beyond : beyond - args.slot_tiles;
    uint32 digests[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i)
        digests[i] = slot_digest<Config>(args, mine * abi::kSlotTile + i * 32 + lane, 0xffffffffu);

    // The turns in which a lane finds one of its digests, in a bit each: what looks into them is long, and
    // stands behind these loops once, not in every turn of them.
    uint32 hits[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const uint32 loaded = slot_digest<Config>(args, others * abi::kSlotTile + j * 32 + lane, 0xfffffffeu);
        hits[j] = 0;
#pragma unroll 8
        for (int turn = 0; turn < 32; ++turn) {
            const uint32 other = __shfl_sync(0xffffffffu, loaded, (lane + turn) % 32);
            const bool has_itself = distance == 0 && turn == 0;
            bool is_hit = false;
#pragma unroll
            for (int i = 0; i < kEach; ++i) is_hit |= digests[i] == other && !(has_itself && i == j);
            hits[j] |= uint32(is_hit) << turn;
        }
    }
    look_into_hits<Config>(args, mine * abi::kSlotTile + lane, others * abi::kSlotTile, hits);
}

}  // namespace attnsmith
