// Cosines and sines of a token's position, for a lane's columns: from a table of them, or from frequencies.
#pragma once

#include "abi/append_arguments.h"
#include "append/row.cuh"

namespace attnsmith {

struct CosSin {
    float cos, sin;
};

// Takes an angle from 0 to 2^30 radians, and rounds once from fp64: the rest of the angle after whole
// quarters of a turn, which two parts of pi / 2 leave exact to 2^-55, and Taylor's series of it. In fp64,
// since the large angles of far positions have few bits behind the point; every operation is spelled out, so
// that a reference on the CPU has the same bits.
__device__ inline CosSin cos_sin_of(float angle) {
    constexpr double kQuarters = 0.63661977236758134308;  // of a turn in a radian
    constexpr double kHigh = 1.5707963267948965580, kLow = 6.1232339957367658860e-17;
    const double quarters = rint(__dmul_rn(double(angle), kQuarters));
    const double rest = __fma_rn(-quarters, kLow, __fma_rn(-quarters, kHigh, double(angle)));
    const double square = __dmul_rn(rest, rest);
    double sin = -1.0 / 1307674368000.0;
    sin = __fma_rn(sin, square, 1.0 / 6227020800.0);
    sin = __fma_rn(sin, square, -1.0 / 39916800.0);
    sin = __fma_rn(sin, square, 1.0 / 362880.0);
    sin = __fma_rn(sin, square, -1.0 / 5040.0);
    sin = __fma_rn(sin, square, 1.0 / 120.0);
    sin = __fma_rn(sin, square, -1.0 / 6.0);
    sin = __fma_rn(__dmul_rn(sin, square), rest, rest);
    double cos = 1.0 / 20922789888000.0;
    cos = __fma_rn(cos, square, -1.0 / 87178291200.0);
    cos = __fma_rn(cos, square, 1.0 / 479001600.0);
    cos = __fma_rn(cos, square, -1.0 / 3628800.0);
    cos = __fma_rn(cos, square, 1.0 / 40320.0);
    cos = __fma_rn(cos, square, -1.0 / 720.0);
    cos = __fma_rn(cos, square, 1.0 / 24.0);
    cos = __fma_rn(cos, square, -1.0 / 2.0);
    cos = __fma_rn(cos, square, 1.0);
    const int32 quarter = int32(int64(quarters) & 3);
    const float c = __double2float_rn(quarter & 1 ? sin : cos),
                s = __double2float_rn(quarter & 1 ? cos : sin);
    return {quarter == 1 || quarter == 2 ? -c : c, quarter >= 2 ? -s : s};
}

// What the rotary columns of one row's chunk are rotated by: of halves an angle a column, of neighbours one
// for two.
template <class Config>
struct Angles {
    static constexpr int kHalf = Config::rotary_dim / 2;
    static constexpr int kCount = Config::rope == kRopeHalf ? 8 : 4;

    float cos[kCount], sin[kCount];

    // Where the i-th angle of the chunk that begins at `column` lies; some number that there is behind the
    // last.
    static __device__ int32 index(int32 column, int i) {
        const int32 angle = Config::rope == kRopeHalf ? column + i : column / 2 + i;
        if (angle < kHalf) return angle;
        const int32 second = angle - kHalf;
        return Config::rope == kRopeHalf && second < kHalf ? second : 0;
    }

    __device__ void load(const abi::AppendArguments& args, int64 position, int32 column) {
        if constexpr (Config::frequencies) {
            const float* frequencies = static_cast<const float*>(args.rope_table);
#pragma unroll 1
            for (int i = 0; i < kCount; ++i) {
                const float angle = __fmul_rn(__ll2float_rn(position), frequencies[index(column, i)]);
                const CosSin of = cos_sin_of(angle);
                set(i, __fmul_rn(of.cos, args.rope_factor), __fmul_rn(of.sin, args.rope_factor));
            }
        } else if (args.rope_is_fp32) {
            load_table<f32>(args, position, column);
        } else {
            load_table<typename Config::Element>(args, position, column);
        }
    }

  private:
    // A loop over registers would put them into local memory.
    __device__ void set(int i, float c, float s) {
#pragma unroll
        for (int j = 0; j < kCount; ++j) {
            if (j != i) continue;
            cos[j] = c;
            sin[j] = s;
        }
    }

    template <class Stored>
    __device__ void load_table(const abi::AppendArguments& args, int64 position, int32 column) {
        const Stored* row = static_cast<const Stored*>(args.rope_table) + position * args.rope_row_stride;
        if constexpr (kHalf % kCount == 0) {  // they lie side by side
            const int32 first = index(column, 0);
            load_floats<kCount, Config::alignment>(cos, row + first);
            load_floats<kCount, Config::alignment>(sin, row + kHalf + first);
        } else {
#pragma unroll
            for (int i = 0; i < kCount; ++i) {
                load_floats<1, Config::alignment>(&cos[i], row + index(column, i));
                load_floats<1, Config::alignment>(&sin[i], row + kHalf + index(column, i));
            }
        }
    }
};

}  // namespace attnsmith
