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

    bool is_found = false;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
        const int32 first = others * abi::kSlotTile + j * 32;
        const uint32 loaded = slot_digest<Config>(args, first + lane, 0xfffffffeu);
#pragma unroll 8
        for (int turn = 0; turn < 32; ++turn) {
            const int32 from = (lane + turn) % 32;
            const uint32 other = __shfl_sync(0xffffffffu, loaded, from);
            uint32 equal = 0;
#pragma unroll
            for (int i = 0; i < kEach; ++i) equal |= uint32(digests[i] == other) << i;
            if (distance == 0 && turn == 0) equal &= ~(1u << j);  // itself
            if (equal == 0 || is_found) continue;
            for (int i = 0; i < kEach; ++i)
                if (equal >> i & 1)
                    is_found |=
                        write_one_slot<Config>(args, mine * abi::kSlotTile + i * 32 + lane, first + from);
        }
    }
    if (is_found) report(args.batch, abi::kStatusSlotWrittenTwice);
}

}  // namespace attnsmith
