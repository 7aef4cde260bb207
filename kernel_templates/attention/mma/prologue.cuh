// What a tile begins with on mma.sync: the first copies on their way, and Q to registers where it stays
// there.
#pragma once

#include "attention/mma/query_loader.cuh"
#include "common/fragment.cuh"

namespace attnsmith {

template <class Config>
struct MmaPrologue {
    using Pipeline = MmaPipeline<Config>;
    using Loader = KeyValueLoader<Config>;
    static constexpr int kQk = abi::padded_head_dim(Config::head_dim_qk);
    static constexpr bool kQueriesInRegisters = Config::queries_in_registers;
    static constexpr int kPublished = Config::stages + 1;  // tiles from the one at hand to the one published
    using Queries = OperandA<kQueriesInRegisters ? kQk : 16>;

    Pipeline pipeline;
    int32 warp_row;

    // The tiles of these keys, which a part may have none of.
    static __device__ KeyInterval blocks_of(const KeyInterval& keys) {
        const KeyInterval blocks = blocks_with<Config::tile_kv>(keys);
        return {blocks.first, keys.is_empty() ? blocks.first : blocks.end};
    }

    // What is done once a tile is not unrolled: it would cost more to compile than it saves.
    // Copy groups in flight, in order: Q, K(0), V(0), K(1), ... V(stages - 2), K(stages - 1).
    __device__ void start(Loader& loader, const QueryTile& tile, const KeyInterval& blocks,
                          Queries& q) const {
        loader.template publish_first<kPublished>(blocks.first);
        MmaQueryLoader<Config>::load(pipeline, tile);
        copy_commit();
        if constexpr (Config::paged) __syncthreads();
#pragma unroll 1
        for (int i = 0; i < Config::stages; ++i) {
            if (i > 0) {
                if (blocks.first + i - 1 < blocks.end) loader.load_v(blocks.first + i - 1);
                copy_commit();
            }
            if (blocks.first + i < blocks.end) loader.load_k(blocks.first + i);
            copy_commit();
        }
        if constexpr (kQueriesInRegisters) {
            copy_wait<2 * Config::stages - 1>();
            __syncthreads();
#pragma unroll
            for (int k = 0; k < kQk / 16; ++k) load_query_fragment(q[k], k);
        }
    }

    // Columns k * 16 ... of the warp's 16 rows.
    __device__ void load_query_fragment(uint32 (&fragment)[4], int k) const {
        const int32 lane = threadIdx.x % 32;
        const SharedAddress first = pipeline.queries().chunk(warp_row + lane % 16, lane / 16);
        load_matrices(fragment, Pipeline::QueryTile::step(first, 0, k));
    }
};

}  // namespace attnsmith
