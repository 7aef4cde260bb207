// What the threads of an mma block share: the tiles in shared memory.
#pragma once

#include "abi/attention_mma.h"
#include "common/swizzled_tile.cuh"

namespace attnsmith {

template <class Config>
struct MmaPipeline {
    static constexpr abi::MmaLayout kLayout = abi::mma_layout(Config::shape);
    static constexpr int kThreads = Config::warps_q * Config::warps_kv * 32;
    static constexpr int kOffsetTiles = abi::mma_offset_tiles(Config::stages);

    using QueryTile = SwizzledTile<typename Config::Query, Config::tile_q, Config::head_dim_qk>;
    using OutputTile = SwizzledTile<typename Config::Output, Config::tile_q, Config::head_dim_vo>;
    using KeyTile = SwizzledTile<typename Config::KeyValue, Config::tile_kv, Config::head_dim_qk>;
    using ValueTile = SwizzledTile<typename Config::KeyValue, Config::tile_kv, Config::head_dim_vo>;

    SharedAddress base;

    __device__ QueryTile queries() const { return {base + kLayout.q}; }
    // In the place of the queries, whose layout it need not share.
    __device__ OutputTile output() const { return {base + kLayout.q}; }
    // Key tile n, counted from key 0.
    __device__ KeyTile keys(int32 n) const {
        return {base + kLayout.k + (n % Config::stages) * kLayout.k_stage};
    }
    __device__ ValueTile values(int32 n) const {
        return {base + kLayout.v + (n % Config::stages) * kLayout.v_stage};
    }
    // Where key `row` of key tile n lies: KeyOffsets.
    __device__ SharedAddress key_offsets(int32 n, int32 row) const {
        return base + kLayout.key_offsets + (n % kOffsetTiles) * (Config::tile_kv * abi::kMmaKeyOffsetBytes) +
               row * abi::kMmaKeyOffsetBytes;
    }
};

}  // namespace attnsmith
