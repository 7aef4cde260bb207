// A CTA that takes tiles of query rows against keys.
#pragma once

#include "attention/join_pieces.cuh"
#include "attention/shares.cuh"
#include "common/shared.cuh"

namespace attnsmith {

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
        const QueryTile tile{args, work.sequence, work.kv_head, work.first_row, Config::tile_q};
        Attention attention{args, tile, work.part, memory};
        attention.run(status);
        if (work.part.is_whole()) continue;
        const TileParts parts(work.part, state.share, kAbreast);
        const auto joiners = joiners_of<kThreads>(state.slices[0], [] { __syncthreads(); });
        if constexpr (Config::absolute_cuts)
            join_pieces<Config, Config::alignment>(tile, parts, work.part, parts.first, state.share,
                                                   memory + Config::layout.ring.k, joiners);
        else
            join_rows<Config, Config::alignment>(tile, parts, work.part, parts.first, 0, joiners);
    }
    report(args, status);
}

}  // namespace attnsmith
