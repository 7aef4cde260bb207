// Brings a tile of Q to shared memory with cp.async.
#pragma once

#include "attention/mma/pipeline.cuh"
#include "common/copy.cuh"

namespace attnsmith {

template <class Config>
struct MmaQueryLoader {
    using Query = typename Config::Query;
    using Pipeline = MmaPipeline<Config>;

    // The tile's rows; those that are no rows of the sequence, and columns beyond the head dim, are zeros.
    static __device__ void load(const Pipeline& pipeline, const QueryTile& tile) {
        constexpr int kElements = Pipeline::QueryTile::kChunkElements;
        constexpr int kChunks = abi::padded_head_dim(Config::head_dim_qk) / kElements;
        const abi::AttentionArguments& args = tile.args;
        const Sequence& sequence = tile.sequence;
        const Query* base = static_cast<const Query*>(args.q) + sequence.batch * args.q_batch_stride;
#pragma unroll 1
        for (int32 i = threadIdx.x; i < Config::tile_q * kChunks; i += Pipeline::kThreads) {
            const PackedRow row = tile.row(i / kChunks);
            const int32 chunk = i % kChunks;
            const bool valid = row.valid && chunk < Config::head_dim_qk / kElements;
            const Query* source = base + (sequence.q_first + row.token) * args.q_token_stride +
                                  row.head * args.q_head_stride + chunk * kElements;
            copy_16_bytes<Config::alignment>(pipeline.queries().chunk(i / kChunks, chunk),
                                             valid ? source : base, valid);
        }
    }
};

}  // namespace attnsmith
