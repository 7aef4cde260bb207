// Selects the k largest scores of each row, and writes their columns in ascending order.
//
//   a CTA a row
//   four passes   a digit of 8 bits each, from the highest: a histogram of the digits finds the digit of the
//                 k-th largest score
//   a last pass   over the columns in their order, which writes those above that score, and the first of
//                 those equal to it
//
// Counts are whole numbers, so what is selected does not depend on which thread came first. Scores that
// change meanwhile give arbitrary columns, but none outside of the row's part of `indices`.
#pragma once

#include "abi/attention_arguments.h"
#include "abi/top_k_arguments.h"
#include "sequences/sequence.cuh"

namespace attnsmith {

// A number that is larger where the score is; of NaN 0, which no score has. -0 is 0.
__device__ inline uint32 order_of(float score) {
    const uint32 bits = __float_as_uint(score == 0.0f ? 0.0f : score);
    if (score != score) return 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The columns of a row that are selected from.
struct TopKRow {
    const float* scores;
    int32 first, end;

    __device__ uint32 order(int32 column) const { return order_of(scores[column]); }
};

// The bounds are read by one thread, so that all have the same.
template <class Config>
__device__ TopKRow row_of(const abi::TopKArguments& args, int64 row, abi::TopKShared& shared) {
    using Index = typename Config::Index;
    if (threadIdx.x == 0) {
        const int64 start = args.row_starts ? index_at<Index>(args.row_starts, row) : 0;
        const int64 end = args.row_ends ? index_at<Index>(args.row_ends, row) : args.columns;
        const int64 first = clamp(start, 0, args.columns);
        const int64 last = clamp(end, first, args.columns);
        if (first != start || last != end) atomicOr(args.status, abi::kStatusKeyClamped);
        shared.first = int32(first);
        shared.end = int32(last);
    }
    __syncthreads();
    return {args.scores + row * args.scores_row_stride, shared.first, shared.end};
}

// The order of the least selected score, and how many of the scores equal to it are selected.
struct TopKLeast {
    uint32 order;
    int32 count;
};

// Finds the digit that holds the `left`-th largest score. By one warp, eight digits a lane.
__device__ inline void find_digit(abi::TopKShared& shared, int32 left) {
    constexpr int32 kOfLane = (1 << abi::kTopKDigitBits) / 32;
    const int32 lane = threadIdx.x % 32;
    int32 mine = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) mine += shared.histogram[lane * kOfLane + i];
    int32 from_here = mine;  // of this lane's digits and all larger ones
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int32 other = __shfl_down_sync(0xffffffffu, from_here, distance);
        if (lane + distance < 32) from_here += other;
    }
    int32 larger = from_here - mine;
    if (larger >= left || from_here < left) return;
    int32 digit = lane * kOfLane + kOfLane - 1;
    while (larger + shared.histogram[digit] < left) larger += shared.histogram[digit--];
    shared.digit = digit;
    shared.left = left - larger;
}

// REQUIRES: the row has more than k scores, and k is not 0.
__device__ inline TopKLeast least_selected(const TopKRow& row, int32 k, abi::TopKShared& shared) {
    TopKLeast least{0, k};
    uint32 known = 0;  // bits of the order that are found
    for (int shift = 32 - abi::kTopKDigitBits; shift >= 0; shift -= abi::kTopKDigitBits) {
        shared.histogram[threadIdx.x] = 0;
        __syncthreads();
        for (int64 column = row.first + int32(threadIdx.x); column < row.end; column += abi::kTopKThreads) {
            const uint32 order = row.order(int32(column));
            if ((order & known) == least.order)
                atomicAdd(&shared.histogram[order >> shift & ((1u << abi::kTopKDigitBits) - 1)], 1);
        }
        __syncthreads();
        if (threadIdx.x < 32) find_digit(shared, least.count);
        __syncthreads();
        least.order |= uint32(shared.digit) << shift;
        least.count = shared.left;
        known |= ((1u << abi::kTopKDigitBits) - 1) << shift;
    }
    return least;
}

// The columns of the scores above the least, and of the first that equal it.
__device__ inline void write_selected(const TopKRow& row, const TopKLeast& least, int32 k, int32* indices,
                                      abi::TopKShared& shared) {
    const int32 warp = threadIdx.x / 32;
    const uint32 before = (1u << threadIdx.x % 32) - 1;
    int32 above = 0, equal = 0;  // in the columns so far
    for (int64 base = row.first; base < row.end && above + min(equal, least.count) < k;
         base += abi::kTopKThreads) {
        const int64 column = base + int32(threadIdx.x);
        const uint32 order = column < row.end ? row.order(int32(column)) : 0;
        const bool is_above = column < row.end && order > least.order;
        const bool is_equal = column < row.end && order == least.order;
        const uint32 all_above = __ballot_sync(0xffffffffu, is_above);
        const uint32 all_equal = __ballot_sync(0xffffffffu, is_equal);
        __syncthreads();  // the counts of the columns before are read
        if (threadIdx.x % 32 == 0) {
            shared.above[warp] = __popc(all_above);
            shared.equal[warp] = __popc(all_equal);
        }
        __syncthreads();
        int32 above_here = above + __popc(all_above & before),
              equal_here = equal + __popc(all_equal & before);
#pragma unroll
        for (int w = 0; w < abi::kTopKThreads / 32; ++w) {
            if (w < warp) above_here += shared.above[w], equal_here += shared.equal[w];
            above += shared.above[w];
            equal += shared.equal[w];
        }
        const int32 place = above_here + min(equal_here, least.count);
        if ((is_above || (is_equal && equal_here < least.count)) && place < k) indices[place] = int32(column);
    }
}

// Grid: x = rows.
template <class Config>
__device__ void top_k(const abi::TopKArguments& args) {
    extern __shared__ __align__(16) char memory[];
    abi::TopKShared& shared = *reinterpret_cast<abi::TopKShared*>(memory);
    const TopKRow row = row_of<Config>(args, blockIdx.x, shared);
    int32* const indices = args.indices + int64(blockIdx.x) * args.indices_row_stride;
    if (const int32 count = row.end - row.first; count <= args.k) {
        for (int64 i = threadIdx.x; i < args.k; i += abi::kTopKThreads)
            indices[i] = i < count ? row.first + int32(i) : -1;
        return;
    }
    if (args.k == 0) return;
    write_selected(row, least_selected(row, args.k, shared), args.k, indices, shared);
}

}  // namespace attnsmith
