// How a warp's lanes divide rows of K or V in shared memory among them: chunks of eight columns side by side,
// several keys at a time where a row has fewer chunks than the warp has lanes.
#pragma once

#include "common/shared.cuh"

namespace attnsmith {

__device__ constexpr int power_of_two_from(int x) {
    int power = 1;
    while (power < x) power *= 2;
    return power;
}

// Lanes over `Keys` keys, a power of two, of `HeadDim` columns.
template <int HeadDim, int Keys>
struct KeyLanes {
    static constexpr int kChunks = HeadDim / 8;
    static constexpr int kForAll = Keys < 32 ? 32 / Keys : 1;  // lanes a key, where no lane may lack one
    static constexpr int kWidth = power_of_two_from(kChunks) > kForAll ? power_of_two_from(kChunks)
                                                                       : kForAll;  // lanes of a key
    static constexpr int kAtOnce = 32 / kWidth;                                    // keys
    static constexpr int kSteps = Keys / kAtOnce;
    static_assert(kWidth <= 32 && Keys % kAtOnce == 0);

    int32 key = threadIdx.x % 32 / kWidth;  // of those at once
    int32 chunk = threadIdx.x % kWidth;

    // A lane beyond the head dim has no columns, so what it holds counts as zeros.
    __device__ bool has_columns() const { return kWidth == kChunks || chunk < kChunks; }
};

// Eight elements in shared memory to fp32.
struct Eight {
    uint32 packed[4];

    __device__ void load(SharedAddress source) { load_shared_16_bytes(packed, source); }
    template <class Element>
    __device__ void unpack(float (&x)[8]) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float2 pair = Element::unpack(packed[i]);
            x[2 * i] = pair.x;
            x[2 * i + 1] = pair.y;
        }
    }
};

// Sums of x[0 ... Rows - 1] over each `Width` neighbouring lanes. They exchange halves of the rows as long as
// there are any, so that Rows sums take about as many shuffles as one: a lane ends up with kRowsLeft sums, of
// rows first_row() and the next.
template <int Rows, int Width>
struct RowSums {
    static constexpr int kShares = Rows < Width ? Rows : Width;
    static constexpr int kRowsLeft = Rows / kShares;
    static constexpr int kCopies = Width / kShares;  // lanes that end up with the same sums

    static __device__ int32 first_row() { return threadIdx.x % Width / kCopies * kRowsLeft; }
    static __device__ bool is_first_copy() { return threadIdx.x % kCopies == 0; }

    static __device__ void reduce(float (&x)[Rows]) { halve<Rows, Width / 2>(x); }

  private:
    template <int Left, int Distance>
    static __device__ void halve(float (&x)[Rows]) {
        if constexpr (Distance > 0 && Left > 1) {
            const bool upper = threadIdx.x & Distance;
#pragma unroll
            for (int i = 0; i < Left / 2; ++i) {
                const float kept = upper ? x[i + Left / 2] : x[i];
                const float given = upper ? x[i] : x[i + Left / 2];
                x[i] = kept + __shfl_xor_sync(0xffffffffu, given, Distance);
            }
            halve<Left / 2, Distance / 2>(x);
        } else if constexpr (Distance > 0) {
            x[0] += __shfl_xor_sync(0xffffffffu, x[0], Distance);
            halve<1, Distance / 2>(x);
        }
    }
};

}  // namespace attnsmith
