// Merges attention states of the same queries over disjoint keys: o = sum_s w_s o_s / sum_s w_s with
// w_s = exp(lse_s - max lse), and lse = log sum_s exp(lse_s).
//
//   8 elements a lane;  the lanes of a row side by side, several rows a warp where head_dim_vo is small, and
//                       a warp twice where it is above 256
//   states in ascending order, so the same bits every time; their loads four at a time, then the arithmetic
//
// A lane reads its elements of every state before it writes them: o may be one of the states.
#pragma once

#include "abi/merge_arguments.h"
#include "attention/epilogue.cuh"
#include "common/element.cuh"

namespace attnsmith {

// The row of a tensor [token][head] that a lane works on.
struct MergeRow {
    int64 token, head;

    __device__ int64 offset(int64 token_stride, int64 head_stride) const {
        return token * token_stride + head * head_stride;
    }
    __device__ float lse(const abi::MergeState& state) const {
        return state.lse[offset(state.lse_token_stride, state.lse_head_stride)];
    }
};

// Sums of a row's states so far: the weights, and the weighted elements of one lane.
struct MergeSums {
    float weight = 0.0f;
    float o[8] = {};

    template <class Element>
    __device__ void add(float w, const uint32 (&packed)[4]) {
        weight += w;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = Element::unpack(packed[i]);
            o[2 * i] = fmaf(w, pair.x, o[2 * i]);
            o[2 * i + 1] = fmaf(w, pair.y, o[2 * i + 1]);
        }
    }
};

// Up to Batch states from `first` on. A state whose lse is -inf has no keys: its o is not read and counts as
// zeros of weight 0.
template <class Config, int Batch>
__device__ void merge_batch(const abi::MergeArguments& args, const MergeRow& row, int32 first, int32 column,
                            float top, MergeSums& sums) {
    float weight[Batch];
    bool live[Batch];
#pragma unroll
    for (int i = 0; i < Batch; ++i) {
        const float lse = first + i < args.states ? row.lse(args.state[first + i]) : -infinity();
        live[i] = lse != -infinity();
        weight[i] = live[i] ? exp2_approx((lse - top) * kLog2e) : 0.0f;
    }
    uint32 packed[Batch][4] = {};
#pragma unroll
    for (int i = 0; i < Batch; ++i) {
        if (!live[i] || column >= Config::head_dim_vo) continue;
        const abi::MergeState& state = args.state[first + i];
        const int64 at = row.offset(state.o_token_stride, state.o_head_stride) + column;
        load_16_bytes<Config::alignment>(packed[i],
                                         static_cast<const typename Config::Output*>(state.o) + at);
    }
#pragma unroll
    for (int i = 0; i < Batch; ++i) sums.add<typename Config::Output>(weight[i], packed[i]);
}

// Grid: x = tiles of Config::tile_q rows.
template <class Config>
__device__ void merge_states(const abi::MergeArguments& args) {
    using Output = typename Config::Output;
    constexpr int kLanes = Config::threads / Config::tile_q;  // of a row
    constexpr int kBatch = 4;
    static_assert(32 % kLanes == 0, "the lanes of a row are of one warp");
    const int64 index = int64(blockIdx.x) * Config::tile_q + threadIdx.x / kLanes;
    if (index >= args.rows) return;
    const MergeRow row{int64(uint64(index) / uint32(args.heads)), int64(uint64(index) % uint32(args.heads))};

    // fmaxf passes over NaN: it comes back with its state's weight.
    float top = -infinity();
    for (int32 s = 0; s < args.states; ++s) top = fmaxf(top, row.lse(args.state[s]));

    // The largest state weighs 1: the sum is 0 only where no state has keys. It is NaN where an lse was.
    float weight = 0.0f;
#pragma unroll 1
    for (int32 first = 0; first < Config::head_dim_vo; first += kLanes * 8) {
        const int32 column = first + threadIdx.x % kLanes * 8;
        MergeSums sums;
        for (int32 s = 0; s < args.states; s += kBatch)
            merge_batch<Config, kBatch>(args, row, s, column, top, sums);
        weight = sums.weight;
        if (column >= Config::head_dim_vo) continue;
        const float factor = weight == 0.0f ? 0.0f : 1.0f / weight;
#pragma unroll
        for (int i = 0; i < 8; ++i) sums.o[i] *= factor;
        const int64 at = row.offset(args.o_token_stride, args.o_head_stride) + column;
        OutputStore<Output, Config::alignment>::eight(static_cast<Output*>(args.o) + at, sums.o);
    }
    __syncwarp();  // lse may be one of the states', which the row's other lanes read
    if (args.lse && threadIdx.x % kLanes == 0) {
        args.lse[row.offset(args.lse_token_stride, args.lse_head_stride)] =
            weight == 0.0f ? -infinity() : fmaf(log2_approx(weight), kLn2, top);
    }
}

}  // namespace attnsmith
