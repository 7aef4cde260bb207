// What an mma tile brings to shared memory, and when: Q once, K and V as their rings have room. All threads
// load.
#pragma once

#include "attention/block_cursor.cuh"
#include "attention/mma/query_loader.cuh"
#include "common/fragment.cuh"

namespace attnsmith {

// The fragment of columns k * 16 ... of 16 rows of queries, from shared memory.
template <class Tile>
__device__ void load_query_fragment(uint32 (&fragment)[4], const Tile& queries, int32 first_row, int k) {
    const int32 lane = threadIdx.x % 32;
    const SharedAddress first = queries.chunk(first_row + lane % 16, lane / 16);
    load_matrices(fragment, Tile::step(first, 0, k));
}

// The same of columns in the order in which widened keys have them: a thread's are four neighbours of the 16.
template <class Tile>
__device__ void load_spread_query_fragment(uint32 (&fragment)[4], const Tile& queries, int32 first_row,
                                           int k) {
    const int32 lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const SharedAddress first = queries.chunk(first_row + fragment_row(lane, i), lane % 4 / 2);
        const uint64 four = uint64(load_shared_8_bytes(Tile::step(first, 0, k) + lane % 2 * 8));
        fragment[i] = uint32(four);
        fragment[2 + i] = uint32(four >> 32);
    }
}

// What both orders of loads have in common.
template <class Config>
struct MmaLoadsBase {
    using Pipeline = MmaPipeline<Config>;
    using Loader = KeyValueLoader<Config>;
    using Blocks = AscendingBlocks<Config::tile_kv>;
    static constexpr int kPublished = Config::stages + 1;  // tiles from the one at hand to the one published

    Pipeline pipeline;
    Loader loader;
    Blocks blocks;  // of which a part may have none

    __device__ MmaLoadsBase(const Pipeline& shared, const QueryTile& tile, const KeyInterval& keys,
                            uint32& status)
        : pipeline(shared), loader(shared, tile, keys, status), blocks(keys) {}

    // Looks the first keys up, and asks for the queries.
    __device__ void start_with_queries(const QueryTile& tile) {
        loader.template publish_first<kPublished>(blocks.first);
        MmaQueries<Config>::load(pipeline, tile);
        copy_commit();
        if constexpr (Config::paged) __syncthreads();
    }
    __device__ void load_k(int32 n) const {
        if constexpr (Config::head_dim_qk > 0) {
            if (blocks.has(n)) loader.load_k(n);
        }
    }
    __device__ void load_v(int32 n) const {
        if (blocks.has(n)) loader.load_v(n);
    }
};

// K and V are two tensors, which come by turns, each when the product before it is done. In flight, in order:
//   Q, K(0), V(0), K(1), ... V(stages - 2), K(stages - 1)
template <class Config>
struct MmaLoadsByTurns : MmaLoadsBase<Config> {
    using Base = MmaLoadsBase<Config>;
    using Base::Base, Base::blocks, Base::loader, Base::load_k, Base::load_v, Base::kPublished;
    using typename Base::Blocks;
    static constexpr int kPending = 2 * Config::stages - 2;

    // What is done once a tile is not unrolled: it would cost more to compile than it saves.
    __device__ void start(const QueryTile& tile) {
        this->start_with_queries(tile);
#pragma unroll 1
        for (int i = 0; i < Config::stages; ++i) {
            if (i > 0) {
                load_v(Blocks::ahead(blocks.first, i - 1));
                copy_commit();
            }
            load_k(Blocks::ahead(blocks.first, i));
            copy_commit();
        }
    }
    // Behind start(), with a barrier: Q is there, where it is needed before the first tile of keys.
    __device__ void await_queries() const {
        copy_wait<2 * Config::stages - 1>();
        __syncthreads();
    }

    // Before the first product with tile n: K is there, and V of the tile before is free.
    __device__ void before_scores(int32 n) {
        copy_wait<kPending>();
        __syncthreads();
        load_v(Blocks::ahead(n - 1, Config::stages));
        copy_commit();
    }

    // Before the second product: V is there, and all threads are past the first.
    __device__ void before_values(int32 n) {
        copy_wait<kPending>();
        __syncthreads();
        load_k(Blocks::ahead(n, Config::stages));
        copy_commit();
        loader.publish_next(Blocks::ahead(n, kPublished));
    }
};

// Of latent attention V is a part of K, so that both are there before the first product and stay until the
// second: Q, KV(0), KV(1), ... KV(stages - 2)
template <class Config>
struct MmaLoadsTogether : MmaLoadsBase<Config> {
    using Base = MmaLoadsBase<Config>;
    using Base::Base, Base::blocks, Base::loader, Base::load_k, Base::load_v, Base::kPublished;
    using typename Base::Blocks;
    static_assert(Config::stages >= 2, "a tile is loaded while the one before it is in use");

    __device__ void start(const QueryTile& tile) {
        this->start_with_queries(tile);
#pragma unroll 1
        for (int i = 0; i < Config::stages - 1; ++i) {
            load_k(Blocks::ahead(blocks.first, i));
            load_v(Blocks::ahead(blocks.first, i));
            copy_commit();
        }
    }
    __device__ void await_queries() const {
        copy_wait<Config::stages - 1>();
        __syncthreads();
    }

    __device__ void before_scores(int32 n) {
        copy_wait<Config::stages - 2>();
        __syncthreads();
        load_k(Blocks::ahead(n - 1, Config::stages));
        load_v(Blocks::ahead(n - 1, Config::stages));
        copy_commit();
        loader.publish_next(Blocks::ahead(n, kPublished));
    }
    __device__ void before_values(int32) { __syncthreads(); }
};

template <class Config, class Columns = ColumnsOf<Config>>
struct MmaLoads : MmaLoadsByTurns<Config> {
    using MmaLoadsByTurns<Config>::MmaLoadsByTurns;
};
template <class Config>
struct MmaLoads<Config, LatentColumns<Config>> : MmaLoadsTogether<Config> {
    using MmaLoadsTogether<Config>::MmaLoadsTogether;
};

}  // namespace attnsmith
