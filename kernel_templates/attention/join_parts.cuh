// Joins what was found over parts of a row's keys: o = sum_p w_p o_p / sum_p w_p l_p, where
// w_p = exp2(c (m_p - m)) and m is the largest m_p. Parts are taken in their order, so that the bits are the
// same every time.
#pragma once

#include "abi/attention_share.h"
#include "attention/epilogue.cuh"

namespace attnsmith {

// Eight columns of a row over all parts so far, not normalised.
struct JoinedColumns {
    float maximum = -infinity();
    float sum = 0.0f;
    float o[8] = {};

    // Some parts more. Where the row saw none of a part's keys, which is where its sum is 0, there is no more
    // to say of it: what `values` has may be anything.
    template <int Parts>
    __device__ void add(const float2 (&ml)[Parts], const float (&values)[Parts][8], float scale_log2) {
        float top = maximum;
#pragma unroll
        for (int p = 0; p < Parts; ++p) top = fmaxf(top, ml[p].x);
        const float reference = top == -infinity() ? 0.0f : top;
        const float rescale = exp2_approx((maximum - reference) * scale_log2);
        maximum = top;
        sum *= rescale;
#pragma unroll
        for (int c = 0; c < 8; ++c) o[c] *= rescale;
#pragma unroll
        for (int p = 0; p < Parts; ++p) {
            const bool has_keys = ml[p].y != 0.0f;
            const float weight = has_keys ? exp2_approx((ml[p].x - reference) * scale_log2) : 0.0f;
            sum = fmaf(weight, ml[p].y, sum);
#pragma unroll
            for (int c = 0; c < 8; ++c)
                if (has_keys) o[c] = fmaf(weight, values[p][c], o[c]);
        }
    }
};

// Eight columns of a row from `column` on, over all its parts in the workspace. `place(p)`: where the row's
// part p lies among the partial results.
template <class Config, class Place>
__device__ JoinedColumns join_parts(const abi::AttentionArguments& args, int32 parts, int32 column,
                                    const Place& place) {
    static_assert(abi::kPartsJoining.columns == 8);
    constexpr int kPartsAtOnce = abi::kPartsJoining.at_once;
    JoinedColumns joined;
#pragma unroll 1
    for (int32 first = 0; first < parts; first += kPartsAtOnce) {
        float2 ml[kPartsAtOnce];
        float4 o[kPartsAtOnce][2];
#pragma unroll
        for (int p = 0; p < kPartsAtOnce; ++p) {
            ml[p] = make_float2(-infinity(), 0.0f);
            o[p][0] = o[p][1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (first + p >= parts) continue;
            const int64 at = place(first + p);
            ml[p] = reinterpret_cast<const float2*>(args.partial_ml)[at];
            const float4* const source =
                reinterpret_cast<const float4*>(args.partial_o + at * Config::head_dim_vo + column);
            o[p][0] = source[0];
            o[p][1] = source[1];
        }
        float values[kPartsAtOnce][8];
#pragma unroll
        for (int p = 0; p < kPartsAtOnce; ++p) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                values[p][4 * half] = o[p][half].x;
                values[p][4 * half + 1] = o[p][half].y;
                values[p][4 * half + 2] = o[p][half].z;
                values[p][4 * half + 3] = o[p][half].w;
            }
        }
        joined.add(ml, values, args.scale_log2);
    }
    return joined;
}

}  // namespace attnsmith
