// Scales of 8-bit keys and values that each head of a token has of its own, or each 128 columns of a latent.
//
//   The scale of a key multiplies its column of logits. That of a value goes into the weights, which are
//   rounded to fp16 then: each row's weights are divided by a power of two that follows from the largest of
//   them so far, and takes that near the largest number of fp16. So none overflows, and one loses bits only
//   where it is 2^28 times less than the largest.
#pragma once

#include "attention/columns.cuh"
#include "common/fragment.cuh"
#include "common/math.cuh"
#include "common/shared.cuh"

namespace attnsmith {

// Those of one key and its value: the key's, of its blocks of columns, then the value's, if it has its own.
template <class Config>
struct TokenScales {
    using Columns = ColumnsOf<Config>;
    static constexpr int kKey = Columns::kKeyScales, kEach = Columns::kScales;

    float values[kEach > 0 ? kEach : 1];

    // As a key has them that is not read. These loops are over indices: NVRTC does not unroll those over a
    // range in time, and leaves what they change in memory.
    __device__ TokenScales() {
#pragma unroll
        for (int i = 0; i < kEach; ++i) values[i] = 1.0f;
    }

    // `outer`: the page, or the sequence where its tokens are not all in a row.
    __device__ void load(const abi::AttentionArguments& args, int32 kv_head, int64 outer, int64 token) {
        const float* const of_key = args.k_scale + kv_head * args.k_scale_head_stride +
                                    outer * args.k_scale_batch_stride + token * args.k_scale_token_stride;
#pragma unroll
        for (int i = 0; i < kKey; ++i) values[i] = of_key[i * args.scale_block_stride];
        if constexpr (Columns::kValueScales > 0)
            values[kKey] =
                args.v_scale[kv_head * args.v_scale_head_stride + outer * args.v_scale_batch_stride +
                             token * args.v_scale_token_stride];
    }

    // Whether all are ordinary numbers above 0. Where one is not, all become NaN: so the key's logits are,
    // which make the rows NaN that see it.
    __device__ bool check() {
        bool are_good = true;
#pragma unroll
        for (int i = 0; i < kEach; ++i) are_good = are_good && values[i] > 0.0f && values[i] < infinity();
#pragma unroll
        for (int i = 0; i < kEach; ++i) values[i] = are_good ? values[i] : not_a_number();
        return are_good;
    }
};

// The scales of two neighbouring keys, of which the first is even.
__device__ inline float2 load_two_scales(SharedAddress scales, int32 key) {
    const uint64 both = uint64(load_shared_8_bytes(scales + key * uint32(sizeof(float))));
    return make_float2(__uint_as_float(uint32(both)), __uint_as_float(uint32(both >> 32)));
}

// Each column of logits times the scale of its key, from the scales of the first on. Rounded where it stands,
// not merged with what follows: so its bits are the same in every kernel.
template <class Scores>
__device__ void scale_columns(Scores& s, SharedAddress scales) {
    s.for_each_columns([&](int column, float(&x)[2 * Scores::kRows]) {
        const float2 of_keys = load_two_scales(scales, column + Scores::first_column());
#pragma unroll
        for (int i = 0; i < Scores::kRows; ++i) {
            x[2 * i] = __fmul_rn(x[2 * i], of_keys.x);
            x[2 * i + 1] = __fmul_rn(x[2 * i + 1], of_keys.y);
        }
    });
}

// Adds the columns of `part` times their keys' scales.
template <class Scores>
__device__ void add_scaled_columns(Scores& s, const Scores& part, SharedAddress scales) {
    constexpr int kEach = 2 * Scores::kRows;
    s.for_each_columns(part, [&](int column, float(&x)[kEach], const float(&of_part)[kEach]) {
        const float2 of_keys = load_two_scales(scales, column + Scores::first_column());
#pragma unroll
        for (int i = 0; i < kEach; ++i) x[i] = fmaf(of_part[i], i % 2 == 0 ? of_keys.x : of_keys.y, x[i]);
    });
}

// A weight times the scale of its value. One of a key that the row does not see is 0, be the scale NaN.
__device__ inline float scaled_weight(float weight, float scale) {
    return weight == 0.0f ? 0.0f : weight * scale;
}

// The power of two in which the sums of a row's weighted values are kept: what its weights are divided by.
struct RowUnit {
    float unit = 0.0f;  // of sums that are 0

    // Takes weights up to `top` from here on, where those so far are to be multiplied by `rescale`, which
    // becomes what sums have to be multiplied by in all. Gives what weights have to be multiplied by. What a
    // row does not see has changed nothing when its first key comes, since rescale is 0 then.
    __device__ float raise(float top, float& rescale) {
        constexpr int32 kLargest = 14 << 23;  // exponent of the largest afterwards: fp16 has up to 15
        constexpr int32 kExponent = 0x7f800000, kLeast = 1 << 23;
        const float before = unit * rescale;
        // What is there already is in a unit that has this headroom. Units are ordinary numbers.
        const int32 exponent =
            max(__float_as_int(before) & kExponent, (__float_as_int(top) & kExponent) - kLargest);
        unit = __int_as_float(max(exponent, kLeast));
        const float inverse = inverse_of(unit);
        rescale = before * inverse;
        return inverse;
    }

    static __device__ float inverse_of(float unit) {
        return __uint_as_float((254u << 23) - __float_as_uint(unit));
    }
};

// Weights times the scales of their values, in the units of their rows, which may be raised. `rescale`: as
// RowUnit::raise has it.
template <class Scores>
__device__ void scale_weights(Scores& s, SharedAddress scales, RowUnit (&units)[2], float (&rescale)[2]) {
    float top[2] = {0.0f, 0.0f};
    s.for_each_columns([&](int column, float(&x)[2 * Scores::kRows]) {
        const float2 of_values = load_two_scales(scales, column + Scores::first_column());
#pragma unroll
        for (int i = 0; i < 2 * Scores::kRows; ++i) {
            x[i] = scaled_weight(x[i], i % 2 == 0 ? of_values.x : of_values.y);
            top[i / 2] = fmaxf(top[i / 2], x[i]);
        }
    });
    float inverse[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) inverse[i] = units[i].raise(row_max(top[i]), rescale[i]);
    s.scale(inverse);
}

// A row of sums to what it is, from its unit, where it ends here. Others keep theirs: they would not come
// back to the same bits where they do not fit into fp32 meanwhile. By selection, as kernels whose registers
// are short have it.
template <class Sums>
__device__ void leave_unit(Sums& o, int i, RowUnit& row, bool ends) {
    o.scale_row(i, ends ? row.unit : 1.0f);
    row.unit = ends ? 0.0f : row.unit;
}

// Sums to what they are, from their rows' units. Sums of other kernels are in none.
template <class Sums>
__device__ void leave_units(Sums& o, const RowUnit (&units)[2]) {
    const float of_rows[2] = {units[0].unit, units[1].unit};
    o.scale(of_rows);
}
template <class Sums>
__device__ void leave_units(Sums&, const RowUnit (&)[1]) {}

}  // namespace attnsmith
