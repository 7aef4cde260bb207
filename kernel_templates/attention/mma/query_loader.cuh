// Brings a tile of Q to shared memory with cp.async.
#pragma once

#include "attention/mma/pipeline.cuh"
#include "common/copy.cuh"

namespace attnsmith {

template <class Config>
struct MmaQueryLoader {
    using Query = typename Config::Query;
    using Pipeline = MmaPipeline<Config>;

    // Where rows of a tensor of queries lie, in elements.
    struct Source {
        const Query* base;
        int64 batch_stride, token_stride, head_stride;
    };

    // The tile's rows; those that are no rows of the sequence, and columns beyond the head dim, are zeros.
    static __device__ void load(const Pipeline& pipeline, const QueryTile& tile) {
        const abi::AttentionArguments& args = tile.args;
        const Source q{static_cast<const Query*>(args.q), args.q_batch_stride, args.q_token_stride,
                       args.q_head_stride};
        if constexpr (Config::latent) {
            load_columns<Config::head_dim_vo>(pipeline.latent_queries(), tile, q);
            // Without a tensor of their own, the columns of the position come behind the others.
            const Source q_pe{args.q_pe ? static_cast<const Query*>(args.q_pe) : q.base + Config::head_dim_vo,
                              args.q_pe_batch_stride, args.q_pe_token_stride, args.q_pe_head_stride};
            if constexpr (Config::head_dim_qk > 0)
                load_columns<Config::head_dim_qk>(pipeline.queries(), tile, q_pe);
        } else {
            load_columns<Config::head_dim_qk>(pipeline.queries(), tile, q);
        }
    }

  private:
    template <int HeadDim, class Tile>
    static __device__ void load_columns(const Tile& target, const QueryTile& tile, const Source& source) {
        constexpr int kElements = Tile::kChunkElements;
        constexpr int kChunks = abi::padded_head_dim(HeadDim) / kElements;
        const Sequence& sequence = tile.sequence;
        const Query* base = source.base + sequence.batch * source.batch_stride;
#pragma unroll 1
        for (int32 i = threadIdx.x; i < Config::tile_q * kChunks; i += Pipeline::kThreads) {
            const PackedRow row = tile.row(i / kChunks);
            const int32 chunk = i % kChunks;
            const bool valid = row.valid && chunk < HeadDim / kElements;
            const Query* from = base + (sequence.q_first + row.token) * source.token_stride +
                                row.head * source.head_stride + chunk * kElements;
            copy_16_bytes<Config::alignment>(target.chunk(i / kChunks, chunk), valid ? from : base, valid);
        }
    }
};

}  // namespace attnsmith
