// A CTA that takes one tile of query rows against the keys of one split.
#pragma once

#include "attention/tiles.cuh"
#include "common/shared.cuh"

namespace attnsmith {

// Grid: x = tile + tiles * (kv_head + kv_heads * split). `Attention` has run(status), and is made of the
// arguments, the tile, the split and the shared memory.
template <class Config, class Attention>
__device__ void attend_tile(const abi::AttentionArguments& args) {
    extern __shared__ __align__(128) char memory[];
    const int32 index = blockIdx.x % args.tiles;
    const int32 rest = blockIdx.x / args.tiles;
    Sequence sequence;
    int32 first_row;
    uint32 status = 0;
    if (find_tile<Config>(args, index, Config::tile_q, sequence, first_row, status)) {
        const QueryTile tile{args, sequence, rest % args.kv_heads, first_row, Config::tile_q};
        Attention attention{args, tile, rest / args.kv_heads, memory};
        attention.run(status);
    }
    if (blockIdx.x == 0) check_lengths<Config>(args, Config::tile_q, threadIdx.x, blockDim.x, status);
    report(args, status);
}

}  // namespace attnsmith
