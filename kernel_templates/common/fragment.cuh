// Register fragments of a warp's 16 rows, as mma and wgmma lay them out.
//
//   A thread has two rows of each 16x8 fragment, lane / 4 (i = 0) and lane / 4 + 8 (i = 1), and of each the
//   columns lane % 4 * 2 and the next. So four lanes share a row.
#pragma once

#include "abi/integers.h"

namespace attnsmith {

// A lane's row i, in the fragment.
__device__ inline int32 fragment_row(int32 lane, int i) { return lane / 4 + 8 * i; }
// The first of the thread's two columns, in the fragment.
__device__ inline int32 fragment_column() { return threadIdx.x % 4 * 2; }

// The sum of products, in fp32: element [j][2 * i + c] is of row i and column 8 * j + fragment_column() + c.
//
// Whatever is done to scores one by one knows no more of a fragment than that a thread has kRows rows of it,
// and of each row kColumns columns, neighbours in pairs. The first is first_column(); for_each() and
// for_each_pair() name columns by their distance from it. Stores go through a row by for_each_run(). Products
// alone know the layout. The accumulators of another instruction are another such fragment.
template <int Columns>
struct Accumulator {
    static constexpr int kFragments = Columns / 8;
    static constexpr int kRows = 2, kColumns = Columns / 4, kAllColumns = Columns;
    static constexpr int kPairPitch = 8;           // columns from one pair to the next
    static constexpr int kRun = 2, kRunPitch = 8;  // neighbours that are stored together

    float values[kFragments][4];

    __device__ float (&operator[](int j))[4] { return values[j]; }
    __device__ const float (&operator[](int j) const)[4] { return values[j]; }

    static __device__ int32 first_column() { return fragment_column(); }
    // f(row, column, value), of columns `First` and up to `End` of the fragment, which are multiples of
    // eight.
    template <int First = 0, int End = Columns, class F>
    __device__ void for_each(const F& f) {
#pragma unroll
        for (int j = First / 8; j < End / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) f(i / 2, j * 8 + i % 2, values[j][i]);
        }
    }
    // f(column, value, next value), of a row.
    template <class F>
    __device__ void for_each_pair(int row, const F& f) {
#pragma unroll
        for (int j = 0; j < kFragments; ++j) f(j * 8, values[j][2 * row], values[j][2 * row + 1]);
    }
    template <class F>
    __device__ void for_each_pair(int row, const F& f) const {
#pragma unroll
        for (int j = 0; j < kFragments; ++j) f(j * 8, values[j][2 * row], values[j][2 * row + 1]);
    }
    // f(column, values), of both rows of a pair of columns: values[2 * row] and [2 * row + 1].
    template <class F>
    __device__ void for_each_columns(const F& f) {
#pragma unroll
        for (int j = 0; j < kFragments; ++j) f(j * 8, values[j]);
    }
    template <class F>
    __device__ void for_each_columns(const F& f) const {
#pragma unroll
        for (int j = 0; j < kFragments; ++j) f(j * 8, values[j]);
    }
    // The same with those of `other`, which are at the same places.
    template <class F>
    __device__ void for_each_columns(const Accumulator& other, const F& f) {
#pragma unroll
        for (int j = 0; j < kFragments; ++j) f(j * 8, values[j], other.values[j]);
    }
    // f(value, that of `other` at the same place), of a row.
    template <class F>
    __device__ void for_each(int row, const Accumulator& other, const F& f) {
#pragma unroll
        for (int j = 0; j < kFragments; ++j) {
#pragma unroll
            for (int c = 2 * row; c < 2 * row + 2; ++c) f(values[j][c], other.values[j][c]);
        }
    }
    // f(run, column, values): of a row, `column` counted from the fragment's first.
    template <class F>
    __device__ void for_each_run(int row, const F& f) const {
#pragma unroll
        for (int j = 0; j < kFragments; ++j) {
            const float x[kRun] = {values[j][2 * row], values[j][2 * row + 1]};
            f(j, j * kRunPitch + fragment_column(), x);
        }
    }
    // The largest of a row, and `least`.
    __device__ float top(int row, float least) const {
        for_each_pair(row, [&](int, float x, float y) { least = fmaxf(least, fmaxf(x, y)); });
        return least;
    }
    // The same by two chains of comparisons, which take half as long to come.
    __device__ float top(int row) const {
        float chains[2] = {fmaxf(values[0][2 * row], values[0][2 * row + 1]),
                           fmaxf(values[1][2 * row], values[1][2 * row + 1])};
#pragma unroll
        for (int j = 2; j < kFragments; ++j)
            chains[j % 2] = fmaxf(chains[j % 2], fmaxf(values[j][2 * row], values[j][2 * row + 1]));
        return fmaxf(chains[0], chains[1]);
    }

    __device__ void clear() {
#pragma unroll
        for (int j = 0; j < kFragments; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) values[j][i] = 0.0f;
        }
    }
    __device__ void clear_row(int i) {
#pragma unroll
        for (int j = 0; j < kFragments; ++j) values[j][2 * i] = values[j][2 * i + 1] = 0.0f;
    }
    // The same by selection, for a loop that has no registers for what a branch would have computed ahead.
    __device__ void clear_row(int i, bool clears) {
#pragma unroll
        for (int j = 0; j < kFragments; ++j) {
#pragma unroll
            for (int c = 2 * i; c < 2 * i + 2; ++c) values[j][c] = clears ? 0.0f : values[j][c];
        }
    }
    __device__ void scale_row(int i, float factor) {
#pragma unroll
        for (int j = 0; j < kFragments; ++j) {
            values[j][2 * i] *= factor;
            values[j][2 * i + 1] *= factor;
        }
    }
    __device__ void scale(const float (&factor)[2]) {
#pragma unroll
        for (int j = 0; j < kFragments; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) values[j][i] *= factor[i / 2];
        }
    }
};

// The sum of products with values that were widened from 8 bits. A transposed load of these brings pairs of
// columns, of which even ones are multiplied together and odd ones together: element [2 * b][2 * i + c] is of
// row i and column 16 * b + spread_column() + 2 * c, and that of [2 * b + 1] of the next one. So a thread has
// four neighbours of each 16 columns.
template <int Columns>
struct SpreadAccumulator : Accumulator<Columns> {
    static_assert(Columns % 16 == 0);
    static constexpr int kRun = 4, kRunPitch = 16;

    // The first of the thread's four columns, of 16.
    static __device__ int32 spread_column() { return threadIdx.x % 4 * 4; }

    template <class F>
    __device__ void for_each_run(int row, const F& f) const {
#pragma unroll
        for (int b = 0; b < Columns / kRunPitch; ++b) {
            const float(&even)[4] = (*this)[2 * b], (&odd)[4] = (*this)[2 * b + 1];
            const float x[kRun] = {even[2 * row], odd[2 * row], even[2 * row + 1], odd[2 * row + 1]};
            f(b, b * kRunPitch + spread_column(), x);
        }
    }
};

// A run of columns in fp32.
__device__ inline void store_run(float* target, const float (&x)[2]) {
    *reinterpret_cast<float2*>(target) = make_float2(x[0], x[1]);
}
__device__ inline void store_run(float* target, const float (&x)[4]) {
    *reinterpret_cast<float4*>(target) = make_float4(x[0], x[1], x[2], x[3]);
}

// A thread's columns of row i to a row in fp32: those below `columns`, a multiple of the runs' pitch or more
// than there are.
template <class Sums>
__device__ inline void store_row(float* row, const Sums& sums, int i, int32 columns = Sums::kAllColumns) {
    sums.for_each_run(i, [&](int run, int32 column, const float(&x)[Sums::kRun]) {
        if (run * Sums::kRunPitch < columns) store_run(row + column, x);
    });
}

// The A operand of a product that sums over `Columns`: 16 of them a step, two 16-bit elements a register.
template <int Columns>
struct OperandA {
    static constexpr int kSteps = Columns / 16;

    uint32 values[kSteps][4];

    __device__ uint32 (&operator[](int step))[4] { return values[step]; }
    __device__ const uint32 (&operator[](int step) const)[4] { return values[step]; }

    // Rounds the sums of one product to operands of the next: both have the same rows and columns a thread.
    template <class Element>
    __device__ void pack(const Accumulator<Columns>& sums) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float(&pair)[4] = sums[2 * step + i / 2];
                values[step][i] = Element::pack(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
            }
        }
    }
};

// Over the four lanes that share a row.
__device__ inline float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

__device__ inline float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// With the lane that differs in `Bit`, x[j] for x[j ^ Bit] where bits differ; `upper`: this lane has the bit.
template <int Bit, int Rounds>
__device__ inline void trade(uint32 (&x)[Rounds][4], uint32 upper) {
#pragma unroll
    for (int i = 0; i < Rounds * 4; ++i) {
        const int round = i / 4, low = i % 4, high = low | Bit;
        if (low & Bit) continue;
        // One statement, because the compiler takes long over so many selections.
        asm volatile(
            "{.reg .pred upper; .reg .b32 traded; setp.ne.b32 upper, %2, 0; "
            "selp.b32 traded, %0, %1, upper; shfl.sync.bfly.b32 traded, traded, %3, 31, 0xffffffff; "
            "selp.b32 %0, traded, %0, upper; selp.b32 %1, %1, traded, upper;}"
            : "+r"(x[round][low]), "+r"(x[round][high])
            : "r"(upper), "n"(Bit));
    }
}

// Among the four lanes that share a row, lane l's x[round][j] for lane j's x[round][l]. Lanes hold pieces of
// two columns, and have whole chunks of eight afterwards. All rounds at once, so that one exchange does not
// wait for the one before.
template <int Rounds>
__device__ inline void transpose_in_row(uint32 (&x)[Rounds][4]) {
    const uint32 lane = threadIdx.x % 32;
    trade<1>(x, lane & 1);
    trade<2>(x, lane & 2);
}

}  // namespace attnsmith
