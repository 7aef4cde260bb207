// Scales of what is stored in 8 bits: given ones, and those that are computed, of a row or of blocks of its
// columns. A computed one maps the largest magnitude to the largest number that the target has.
#pragma once

#include "append/jobs.cuh"
#include "append/place.cuh"
#include "common/math.cuh"

namespace attnsmith {

// One over the scale, by which values are multiplied. NaN where it is no ordinary number above 0.
__device__ inline float inverse_of(float scale, uint32& status) {
    if (scale >= __uint_as_float(0x00800000u) && scale < infinity()) return __frcp_rn(scale);
    status |= abi::kStatusScaleNotPositive;
    return not_a_number();
}

// Magnitudes are compared as bits: their order is that of the numbers, with infinity and NaN above all.
__device__ inline uint32 larger(uint32 a, uint32 b) { return a > b ? a : b; }

// What the lane has of a row's c-th chunk. Of columns that the row has not a register may hold anything.
template <class Config, class Job>
__device__ uint32 largest_of_chunk(const typename Layout<Config, Job>::Row& row, int c) {
    uint32 largest = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = larger(largest, __float_as_uint(row.x[c][i]) & 0x7fffffffu);
    return Layout<Config, Job>::has(c) ? largest : 0;
}

template <class Config, class Job>
__device__ uint32 largest_of(const typename Layout<Config, Job>::Row& row) {
    uint32 largest = 0;
#pragma unroll
    for (int c = 0; c < Layout<Config, Job>::kChunks; ++c)
        largest = larger(largest, largest_of_chunk<Config, Job>(row, c));
    return largest;
}

// By a whole warp: the largest of each so many neighbouring lanes.
template <int Lanes>
__device__ uint32 largest_over_lanes(uint32 largest) {
#pragma unroll
    for (int distance = 1; distance < Lanes; distance *= 2)
        largest = larger(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
    return largest;
}

// 1 where all is 0, NaN where something is infinite or NaN, and else a number that has a reciprocal.
template <class Job>
__device__ float scale_of(uint32 largest) {
    static_assert(Job::kStored == 3 || Job::kStored == 2, "scales are of e4m3 and e5m2");
    constexpr float kLargestStored = Job::kStored == 3 ? 448.0f : 57344.0f;
    if (largest >= 0x7f800000u) return not_a_number();
    if (largest == 0) return 1.0f;
    return fmaxf(__fdiv_rn(__uint_as_float(largest), kLargestStored), __uint_as_float(0x00800000u));
}

// Where the scale of a token's first head is written to.
__device__ inline float* scale_place(const abi::AppendRows& rows, const TokenPlace& place) {
    return rows.scale + place.outer * rows.scale_sequence_stride + place.offset * rows.scale_token_stride;
}

// Those of a row: one, or one for each block of columns, which is so many neighbouring lanes' chunks.
template <class Config, class Job>
struct Scales {
    using Rows = Layout<Config, Job>;

    static constexpr bool kAreOfBlocks = Job::kScaleColumns < Job::kColumns;
    static constexpr int kLanesOfBlock = Job::kScaleColumns / kAppendChunk;
    static_assert(!kAreOfBlocks || (!Rows::kHasHalves && Rows::kLanes % kLanesOfBlock == 0),
                  "a lane's chunk lies in one block");

    float of_chunk[Rows::kChunks];

    // By a whole warp.
    static __device__ Scales of(const typename Rows::Row& row) {
        Scales scales;
        if constexpr (kAreOfBlocks) {
#pragma unroll
            for (int c = 0; c < Rows::kChunks; ++c)
                scales.of_chunk[c] =
                    scale_of<Job>(largest_over_lanes<kLanesOfBlock>(largest_of_chunk<Config, Job>(row, c)));
        } else {
            const float scale = scale_of<Job>(largest_over_lanes<Rows::kLanes>(largest_of<Config, Job>(row)));
#pragma unroll
            for (int c = 0; c < Rows::kChunks; ++c) scales.of_chunk[c] = scale;
        }
        return scales;
    }

    // By the lane that has the first of a scale's columns.
    __device__ void store(float* first, int64 block_stride) const {
#pragma unroll
        for (int c = 0; c < Rows::kChunks; ++c) {
            const int32 column = Rows::column(c);
            if (Rows::has(c) && column % Job::kScaleColumns == 0)
                first[column / Job::kScaleColumns * block_stride] = of_chunk[c];
        }
    }

    __device__ void invert(float (&inverse)[Rows::kChunks]) const {
#pragma unroll
        for (int c = 0; c < Rows::kChunks; ++c) inverse[c] = __frcp_rn(of_chunk[c]);
    }
};

}  // namespace attnsmith
