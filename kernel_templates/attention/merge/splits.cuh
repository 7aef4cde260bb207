// Joins the partial results of a KV split.
//
// A row's splits follow from the keys that it may see: others were perhaps never written and are not read.
#pragma once

#include "attention/join_parts.cuh"
#include "attention/mask.cuh"

namespace attnsmith {

// Grid: x = tile + tiles * kv_head, tiles of Config::tile_q packed rows; a thread eight columns of one.
template <class Config>
__device__ void merge_splits(const abi::AttentionArguments& args) {
    const int32 kv_head = blockIdx.x / args.tiles;
    Sequence sequence;
    int32 first_row;
    uint32 status = 0;  // the attention kernel has reported already
    if (!find_tile<Config>(args, blockIdx.x % args.tiles, Config::tile_q, sequence, first_row, status))
        return;
    const QueryTile tile{args, sequence, kv_head, first_row, Config::tile_q};
    const Epilogue<Config, Config::alignment> epilogue{args, sequence};
    constexpr int kChunks = Config::head_dim_vo / 8;
    for (int32 i = threadIdx.x; i < Config::tile_q * kChunks; i += blockDim.x) {
        const PackedRow row = tile.row(i / kChunks);
        if (!row.valid) return;  // nor is any after it
        const int32 column = i % kChunks * 8;
        const KeyInterval splits = splits_with(args, visible_keys(args, sequence, row.token));
        JoinedColumns joined = join_parts<Config>(args, splits.end - splits.first, column, [&](int32 part) {
            return epilogue.partial(row, splits.first + part);
        });
        epilogue.store_eight(row, -1, column, joined.o, joined.maximum, joined.sum);
    }
}

}  // namespace attnsmith
