// Joins the softmaxes of a block's warps over their slices of keys, in the order of the warps. By way of
// shared memory, in the place of K and V.
#pragma once

#include "abi/attention_mma.h"
#include "attention/epilogue.cuh"
#include "attention/softmax/online.cuh"

namespace attnsmith {

// Eight columns of a row over all warps' keys, not normalised.
struct JoinedColumns {
    float maximum = -infinity();
    float sum = 0.0f;
    float o[8] = {};
};

template <class Config>
struct WarpJoin {
    static constexpr abi::MmaLayout kLayout = abi::mma_layout(Config::shape);
    static constexpr int kRow = abi::mma_partial_row(Config::head_dim_vo);
    static constexpr int kWarps = Config::warps_kv;
    static constexpr int kThreads = Config::warps_q * Config::warps_kv * 32;

    float* partial_o;
    float2* partial_ml;

    __device__ explicit WarpJoin(char* memory)
        : partial_o(reinterpret_cast<float*>(memory + kLayout.partial_o)),
          partial_ml(reinterpret_cast<float2*>(memory + kLayout.partial_ml)) {}

    __device__ void run(const QueryTile& tile, int32 split, const OnlineSoftmax& softmax,
                        const Accumulator<abi::padded_head_dim(Config::head_dim_vo)>& o) const {
        __syncthreads();  // k and v are done with
        publish(softmax, o);
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
            epilogue.store_eight(row, split, column, joined.o, joined.maximum, joined.sum);
        }
    }

  private:
    // This warp's rows.
    template <int Columns>
    __device__ void publish(const OnlineSoftmax& softmax, const Accumulator<Columns>& o) const {
        const int32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32 row = warp * Config::tile_q + fragment_row(lane, i);
#pragma unroll
            for (int j = 0; j < Columns / 8; ++j) {
                *reinterpret_cast<float2*>(partial_o + row * kRow + j * 8 + fragment_column()) =
                    make_float2(o[j][2 * i], o[j][2 * i + 1]);
            }
            if (lane % 4 == 0) partial_ml[row] = make_float2(softmax.maximum[i], softmax.sum[i]);
        }
    }

    __device__ JoinedColumns join(int32 in_tile, int32 column, float scale_log2) const {
        JoinedColumns joined;
#pragma unroll
        for (int w = 0; w < kWarps; ++w)
            joined.maximum = fmaxf(joined.maximum, partial_ml[w * Config::tile_q + in_tile].x);
        const float reference = joined.maximum == -infinity() ? 0.0f : joined.maximum;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
            const float2 ml = partial_ml[w * Config::tile_q + in_tile];
            const float weight = exp2_approx((ml.x - reference) * scale_log2);
            joined.sum = fmaf(weight, ml.y, joined.sum);
            const float* source = partial_o + (w * Config::tile_q + in_tile) * kRow + column;
#pragma unroll
            for (int c = 0; c < 8; ++c) joined.o[c] = fmaf(weight, source[c], joined.o[c]);
        }
        return joined;
    }
};

}  // namespace attnsmith
