// What is done to rows, and how a warp holds them.
#pragma once

#include "abi/append_arguments.h"
#include "append/row.cuh"

namespace attnsmith {

// What is done to the rows of q, of k and of v. Of latents, k is the position's columns and v the latent's.
// kScaleColumns: so many neighbouring columns share a scale that is computed here; 0: scales are given.
template <class Config>
struct QueryJob {
    static constexpr int kColumns = Config::columns_q, kStored = Config::q_significand;
    static constexpr int kScaleColumns = 0;
    static constexpr bool kNorm = Config::norm_q, kWeighted = true, kRope = Config::rope != 0;
};
template <class Config>
struct KeyJob {
    static constexpr int kColumns = Config::columns_k, kStored = Config::k_significand;
    static constexpr int kScaleColumns = Config::k_scale_columns;
    static constexpr bool kNorm = Config::norm_k, kWeighted = true, kRope = Config::rope != 0;
};
template <class Config>
struct ValueJob {
    static constexpr int kColumns = Config::columns_v, kStored = Config::v_significand;
    static constexpr int kScaleColumns = Config::v_scale_columns;
    static constexpr bool kNorm = Config::norm_v, kWeighted = Config::weighted_v, kRope = false;
};

// How a warp holds rows: so many lanes a row, with so many chunks each.
template <class Config, class Job>
struct Layout {
    static constexpr bool kHasHalves = abi::append_has_halves(
        Job::kColumns, Job::kRope&& Config::rope == kRopeHalf ? Config::rotary_dim : 0);
    static constexpr int kLanes = abi::append_lanes(Job::kColumns, kHasHalves);
    static constexpr int kChunks = abi::append_chunks(Job::kColumns, kHasHalves);
    static constexpr int kRows = 32 / kLanes;
    static constexpr int kElementBytes = Job::kStored == 0 ? 2 : 1;

    using Row = RowChunks<kLanes, kChunks>;
    using Packed = uint32[kChunks][4];

    // Columns of the lane's c-th chunk, and whether the row has them.
    static __device__ int32 column(int c) {
        return (int32(threadIdx.x % kLanes) + c * kLanes) * kAppendChunk;
    }
    static __device__ bool has(int c) { return column(c) < Job::kColumns; }

    // Zeros where the row is not there, and in columns that it has not.
    static __device__ void load(uint32 (&packed)[4], const typename Config::Element* row, int c,
                                bool is_there) {
#pragma unroll
        for (int i = 0; i < 4; ++i) packed[i] = 0;
        if (is_there && has(c)) load_16_bytes<Config::alignment>(packed, row + column(c));
    }
};

}  // namespace attnsmith
