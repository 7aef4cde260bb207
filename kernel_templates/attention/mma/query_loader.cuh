// The queries of an mma tile in shared memory: brought there with cp.async, and made fp16 where keys are
// widened.
#pragma once

#include "attention/columns.cuh"
#include "attention/mma/pipeline.cuh"
#include "attention/stored_keys.cuh"
#include "common/copy.cuh"

namespace attnsmith {

// Where rows of a tensor of queries lie, in elements.
template <class Query>
struct QuerySource {
    const Query* base;
    int64 batch_stride, token_stride, head_stride;

    static __device__ QuerySource q(const abi::AttentionArguments& args) {
        return {static_cast<const Query*>(args.q), args.q_batch_stride, args.q_token_stride,
                args.q_head_stride};
    }
    // The columns of the position, which lie behind the `latents` others where they have no tensor.
    static __device__ QuerySource position(const abi::AttentionArguments& args, int32 latents) {
        return {
            args.q_pe ? static_cast<const Query*>(args.q_pe) : static_cast<const Query*>(args.q) + latents,
            args.q_pe_batch_stride, args.q_pe_token_stride, args.q_pe_head_stride};
    }
};

// The tile's rows of `HeadDim` columns; those that are no rows of the sequence, and columns beyond the head
// dim, are zeros.
template <class Config, int HeadDim, class Tile>
__device__ void load_query_columns(const Tile& target, const QueryTile& tile,
                                   const QuerySource<typename Config::Query>& source) {
    using Query = typename Config::Query;
    constexpr int kElements = Tile::kChunkElements;
    constexpr int kChunks = abi::padded_head_dim(HeadDim) / kElements;
    const Sequence& sequence = tile.sequence;
    const Query* base = source.base + sequence.batch * source.batch_stride;
#pragma unroll 1
    for (int32 i = threadIdx.x; i < Config::tile_q * kChunks; i += kThreadsOf<Config>) {
        const PackedRow row = tile.row(i / kChunks);
        const int32 chunk = i % kChunks;
        const bool valid = row.valid && chunk < HeadDim / kElements;
        const Query* from = base + (sequence.q_first + row.token) * source.token_stride +
                            row.head * source.head_stride + chunk * kElements;
        copy_16_bytes<Config::alignment>(target.chunk(i / kChunks, chunk), valid ? from : base, valid);
    }
}

template <class Config, class Columns = ColumnsOf<Config>>
struct MmaQueries {
    using Pipeline = MmaPipeline<Config>;

    static __device__ void load(const Pipeline& pipeline, const QueryTile& tile) {
        load_query_columns<Config, Config::head_dim_qk>(pipeline.queries(), tile,
                                                        QuerySource<typename Config::Query>::q(tile.args));
    }
    // `factors`: what each row was divided by.
    static __device__ void to_fp16(const Pipeline& pipeline, float* factors) {
        queries_to_fp16(Config::tile_q, kThreadsOf<Config>, factors, pipeline.queries());
    }
};

// Those that meet latents, and those that meet the columns of the position.
template <class Config>
struct MmaQueries<Config, LatentColumns<Config>> {
    using Pipeline = MmaPipeline<Config>;
    using Source = QuerySource<typename Config::Query>;
    static constexpr int kPosition = Config::head_dim_qk;  // columns, or none

    static __device__ void load(const Pipeline& pipeline, const QueryTile& tile) {
        load_query_columns<Config, Config::head_dim_vo>(pipeline.latent_queries(), tile,
                                                        Source::q(tile.args));
        if constexpr (kPosition > 0)
            load_query_columns<Config, kPosition>(pipeline.queries(), tile,
                                                  Source::position(tile.args, Config::head_dim_vo));
    }
    // Position columns of 16 bits are multiplied as they are.
    static __device__ void to_fp16(const Pipeline& pipeline, float* factors) {
        if constexpr (kPosition == 0 || sizeof(typename Config::Position) > 1)
            queries_to_fp16(Config::tile_q, kThreadsOf<Config>, factors, pipeline.latent_queries());
        else
            queries_to_fp16(Config::tile_q, kThreadsOf<Config>, factors, pipeline.latent_queries(),
                            pipeline.queries());
    }
};

}  // namespace attnsmith
