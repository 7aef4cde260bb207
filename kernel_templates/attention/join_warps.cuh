// Joins the softmaxes of a block's warps over their slices of keys, in the order of the warps. By way of
// shared memory, in the place of K and V.
#pragma once

#include "abi/key_value_ring.h"
#include "attention/join_parts.cuh"

namespace attnsmith {

// All threads of the block, in this order: reuse_key_values(), each warp's rows to row_o() and row_ml(),
// store().
template <class Config>
struct WarpJoin {
    static constexpr abi::WarpPartials kPlaces = Config::layout.partials;
    static constexpr int kRow = abi::warp_partial_row(Config::head_dim_vo);
    static constexpr int kWarps = Config::warps_kv;
    static constexpr int kThreads = kThreadsOf<Config>;

    float* partial_o;
    float2* partial_ml;

    __device__ explicit WarpJoin(char* memory)
        : partial_o(reinterpret_cast<float*>(memory + kPlaces.o)),
          partial_ml(reinterpret_cast<float2*>(memory + kPlaces.ml)) {}

    // K and V are done with.
    __device__ void reuse_key_values() const { __syncthreads(); }

    // The partial result of this warp's row `in_tile`.
    __device__ float* row_o(int32 in_tile) const { return partial_o + own_row(in_tile) * kRow; }
    __device__ float2& row_ml(int32 in_tile) const { return partial_ml[own_row(in_tile)]; }

    // `place`: of the tile's first row among the partial results; negative: O is stored.
    __device__ void store(const QueryTile& tile, int32 place) const {
        __syncthreads();
        const Epilogue<Config, Config::alignment> epilogue{tile.args, tile.sequence};
        constexpr int kChunks = Config::head_dim_vo / 8;
#pragma unroll 1
        for (int32 i = threadIdx.x; i < Config::tile_q * kChunks; i += kThreads) {
            const int32 in_tile = i / kChunks;
            const int32 column = i % kChunks * 8;
            const PackedRow row = tile.row(in_tile);
            if (!row.valid) continue;
            JoinedColumns joined = join(in_tile, column, tile.args.scale_log2);
            epilogue.store_eight(row, place < 0 ? -1 : place + in_tile, column, joined.o, joined.maximum,
                                 joined.sum);
        }
    }

  private:
    __device__ int32 own_row(int32 in_tile) const { return threadIdx.x / 32 * Config::tile_q + in_tile; }

    __device__ JoinedColumns join(int32 in_tile, int32 column, float scale_log2) const {
        float2 ml[kWarps];
        float values[kWarps][8];
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            ml[w] = partial_ml[w * Config::tile_q + in_tile];
            const float* source = partial_o + (w * Config::tile_q + in_tile) * kRow + column;
#pragma unroll
            for (int c = 0; c < 8; ++c) values[w][c] = source[c];
        }
        JoinedColumns joined;
        joined.add(ml, values, scale_log2);
        return joined;
    }
};

}  // namespace attnsmith
