// A CTA that takes tiles of query rows against keys.
#pragma once

#include "attention/join_pieces.cuh"
#include "attention/shares.cuh"

namespace attnsmith {

// Whether what is done of a tile lies in shared memory while its keys go by. It takes 16 registers else,
// which wide kernels that cut rows do not have.
template <class Config>
__device__ constexpr bool keeps_work_in_shared_memory() {
    if constexpr (Config::absolute_cuts)
        return Config::layout.work > 0;
    else
        return false;
}

// By all threads of the block.
template <class Config>
__device__ const TileWork& at_hand(const TileWork& work, char* memory) {
    if constexpr (keeps_work_in_shared_memory<Config>()) {
        static_assert(sizeof(TileWork) == abi::kTileWorkBytes);
        TileWork& shared = *reinterpret_cast<TileWork*>(memory + Config::layout.work);
        if (threadIdx.x == 0) shared = work;
        __syncthreads();
        return shared;
    } else {
        return work;
    }
}

// Grid: a CTA a share. `Attention` has run(status), and is made of the arguments, the tile,
// what is done of it, and the shared memory.
template <class Config, class Attention>
__device__ void attend_tiles(const abi::AttentionArguments& args) {
    extern __shared__ __align__(128) char memory[];
    uint32 status = 0;
    TileWork work;
    constexpr int kThreads = kThreadsOf<Config>;
    abi::ShareState& state = *reinterpret_cast<abi::ShareState*>(memory + Config::layout.share);
    constexpr int32 kAbreast = 1;  // this kernel divides no group, so that no KV heads read the same keys
    Shares<Config, kThreads> shares(args, state, Config::tile_q, kAbreast);
#pragma unroll 1
    while (shares.next(work, status)) {
        const TileWork& here = at_hand<Config>(work, memory);
        const QueryTile tile{args, here.sequence, here.kv_head, here.first_row, Config::tile_q};
        Attention attention{args, tile, here.part, memory};
        attention.run(status);
        if (here.part.is_whole()) continue;
        const TileParts parts(here.part, state.share, kAbreast);
        const auto joiners = joiners_of<kThreads>(state.slices[0], [] { __syncthreads(); });
        if constexpr (Config::absolute_cuts)
            join_pieces<Config, Config::alignment>(tile, parts, here.part, parts.first, state.share,
                                                   memory + Config::layout.ring.k, joiners);
        else
            join_rows<Config, Config::alignment>(tile, parts, here.part, parts.first, 0, joiners);
    }
    report(args, status);
}

}  // namespace attnsmith
