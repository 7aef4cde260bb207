// What the threads of an mma block share: the tiles in shared memory.
#pragma once

#include "abi/attention_mma.h"
#include "attention/key_value_loader.cuh"

namespace attnsmith {

template <class Config>
struct MmaPipeline : KeyValueStages<Config> {
    using QueryTile = SwizzledTile<typename Config::Query, Config::tile_q, Config::head_dim_qk>;
    using OutputTile = SwizzledTile<typename Config::Output, Config::tile_q, Config::head_dim_vo>;
    using LatentQueryTile = SwizzledTile<typename Config::Query, Config::tile_q, Config::head_dim_vo>;

    __device__ QueryTile queries() const { return {this->base + Config::layout.q}; }
    // Those of latent attention that meet V.
    __device__ LatentQueryTile latent_queries() const { return {this->base + Config::layout.latent_q}; }
    // In the place of the queries, whose layout it need not share.
    __device__ OutputTile output() const { return {this->base + Config::layout.q}; }
};

}  // namespace attnsmith
