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

// Where K and V are two tensors, they come by turns, each when the product before it is done. Of latent
// attention V is a part of K, so that both are there before the first product and stay until the second.
//
//   copy groups in flight, in order:   Q, K(0), V(0), K(1), ... V(stages - 2), K(stages - 1)
//   of latent attention:               Q, KV(0), KV(1), ... KV(stages - 2)
template <class Config>
struct MmaLoads {
    using Pipeline = MmaPipeline<Config>;
    using Loader = KeyValueLoader<Config>;
    static constexpr bool kLatent = Config::latent;
    static constexpr int kPending = kLatent ? Config::stages - 2 : 2 * Config::stages - 2;
    static constexpr int kPublished = Config::stages + 1;  // tiles from the one at hand to the one published
    static_assert(!kLatent || Config::stages >= 2, "a tile is loaded while the one before it is in use");

    Pipeline pipeline;
    Loader loader;
    using Blocks = AscendingBlocks<Config::tile_kv>;
    Blocks blocks;  // which a part may have none of

    __device__ MmaLoads(const Pipeline& shared, const QueryTile& tile, const KeyInterval& keys,
                        uint32& status)
        : pipeline(shared), loader(shared, tile, keys, status), blocks(keys) {}

    // What is done once a tile is not unrolled: it would cost more to compile than it saves.
    __device__ void start(const QueryTile& tile) {
        loader.template publish_first<kPublished>(blocks.first);
        MmaQueryLoader<Config>::load(pipeline, tile);
        copy_commit();
        if constexpr (Config::paged) __syncthreads();
#pragma unroll 1
        for (int i = 0; i < (kLatent ? Config::stages - 1 : Config::stages); ++i) {
            if constexpr (kLatent) {
                load_k(Blocks::ahead(blocks.first, i));
                load_v(Blocks::ahead(blocks.first, i));
            } else {
                if (i > 0) {
                    load_v(Blocks::ahead(blocks.first, i - 1));
                    copy_commit();
                }
                load_k(Blocks::ahead(blocks.first, i));
            }
            copy_commit();
        }
    }
    // Behind start(), with a barrier: Q is there, where it is needed before the first tile of keys.
    __device__ void await_queries() const {
        copy_wait<kLatent ? Config::stages - 1 : 2 * Config::stages - 1>();
        __syncthreads();
    }

    // Before the first product with tile n: K is there, and V of the tile before is free.
    __device__ void before_scores(int32 n) {
        copy_wait<kPending>();
        __syncthreads();
        if constexpr (kLatent) load_k(Blocks::ahead(n - 1, Config::stages));
        load_v(Blocks::ahead(n - 1, Config::stages));
        copy_commit();
        if constexpr (kLatent) loader.publish_next(Blocks::ahead(n, kPublished));
    }

    // Before the second product: V is there, and all threads are past the first.
    __device__ void before_values(int32 n) {
        if constexpr (!kLatent) copy_wait<kPending>();
        __syncthreads();
        if constexpr (!kLatent) {
            load_k(Blocks::ahead(n, Config::stages));
            copy_commit();
            loader.publish_next(Blocks::ahead(n, kPublished));
        }
    }

  private:
    __device__ void load_k(int32 n) const {
        if constexpr (Config::head_dim_qk > 0) {
            if (blocks.has(n)) loader.load_k(n);
        }
    }
    __device__ void load_v(int32 n) const {
        if (blocks.has(n)) loader.load_v(n);
    }
};

}  // namespace attnsmith
