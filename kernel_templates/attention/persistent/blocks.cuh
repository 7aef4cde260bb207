// Which blocks of keys a tile of a persistent CTA has.
#pragma once

#include "attention/persistent/pipeline.cuh"

namespace attnsmith {

// What the consumer warpgroup `lane` does of a tile's blocks, whose keys are these; what lanes beyond the
// warpgroups find is not asked.
template <class Config>
__device__ WarpgroupBlocks warpgroup_blocks(const abi::PersistentArguments& args, const WorkTile& work,
                                            const KeyInterval& keys, const KeyInterval& blocks) {
    const TileRows tile = work.rows(args, threadIdx.x % 32, 1);
    if (tile.first >= work.sequence.rows(args.attention)) return {{blocks.first, blocks.first}};
    TileMask mask(tile);
    mask.keep(keys);
    if (mask.read.is_empty()) return {{blocks.first, blocks.first}};
    return {blocks_with<Config::tile_kv>(mask.read), blocks_within<Config::tile_kv>(mask.seen_by_all)};
}

// The keys that are loaded for a tile, whose mask reads them, and what each warpgroup does of their blocks.
// By a warp. Where no key is seen there is a block all the same, which nobody attends to.
template <class Config>
__device__ void set_blocks(const abi::PersistentArguments& args, TileMask mask, WorkTile& work) {
    if (mask.read.is_empty()) mask = TileMask::nothing();
    KeyInterval blocks = blocks_with<Config::tile_kv>(mask.read);
    blocks.end = max(blocks.end, blocks.first + 1);
    const int32 lane = threadIdx.x % 32;
    if (lane == 0) {
        work.mask = mask;
        work.blocks = blocks;
    }
    // Lane 0 writes it all, because it hands the work over: who else writes is ordered by the warp's
    // convergence alone.
    const WarpgroupBlocks mine = warpgroup_blocks<Config>(args, work, mask.read, blocks);
#pragma unroll
    for (int32 warpgroup = 0; warpgroup < kRowGroups<Config>; ++warpgroup) {
        const WarpgroupBlocks its{{__shfl_sync(0xffffffffu, mine.attended.first, warpgroup),
                                   __shfl_sync(0xffffffffu, mine.attended.end, warpgroup)},
                                  {__shfl_sync(0xffffffffu, mine.full.first, warpgroup),
                                   __shfl_sync(0xffffffffu, mine.full.end, warpgroup)}};
        if (lane == 0) work.warpgroup[warpgroup] = its;
    }
}

}  // namespace attnsmith
