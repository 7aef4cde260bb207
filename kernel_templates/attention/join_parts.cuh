// Joins what was found over parts of a row's keys: o = sum_p w_p o_p / sum_p w_p l_p, where
// w_p = exp2(c (m_p - m)) and m is the largest m_p. Parts are taken in their order, so that the bits are the
// same every time.
#pragma once

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
            for (int c = 0; c < 8; ++c) o[c] = fmaf(weight, has_keys ? values[p][c] : 0.0f, o[c]);
        }
    }

    // Joins what so many neighbouring lanes have, a power of two: each has some of the parts, in the order of
    // the lanes. The first lane's bits are the same every time. By all lanes of the warp.
    __device__ void add_lanes(int32 lanes, float scale_log2) {
#pragma unroll 1
        for (int32 distance = 1; distance < lanes; distance *= 2) {
            const float2 ml[1] = {make_float2(__shfl_xor_sync(0xffffffffu, maximum, distance),
                                              __shfl_xor_sync(0xffffffffu, sum, distance))};
            float values[1][8];
#pragma unroll
            for (int c = 0; c < 8; ++c) values[0][c] = __shfl_xor_sync(0xffffffffu, o[c], distance);
            add(ml, values, scale_log2);
        }
    }
};

// Parts that a thread has under way, so that they wait for L2 together. The kernels of the smallest head dims
// have no registers for more: four of their CTAs are on an SM.
template <class Config>
inline constexpr int32 kPartsAtOnce = Config::head_dim_vo <= 16 ? 4 : 8;

// Eight columns of a row from `column` on, over all its parts in the workspace. `place(p)`: where the row's
// part p lies among the partial results; its maximum and sum are in that set of them (abi::kPartialSets).
template <class Config, class Place>
__device__ JoinedColumns join_parts(const abi::AttentionArguments& args, int32 set, int32 parts, int32 column,
                                    const Place& place) {
    constexpr int32 kAtOnce = kPartsAtOnce<Config>;
    const float2* const partial_ml = reinterpret_cast<const float2*>(args.partial_ml) + set * args.rows;
    JoinedColumns joined;
#pragma unroll 1
    for (int32 first = 0; first < parts; first += kAtOnce) {
        float2 ml[kAtOnce];
        float4 o[kAtOnce][2];
#pragma unroll
        for (int p = 0; p < kAtOnce; ++p) {
            // Behind the last part the last one is loaded again and counts for nothing: a branch around each
            // part's loads would cost more.
            const auto at = place(min(first + p, parts - 1));
            ml[p] = partial_ml[at];
            if (first + p >= parts) ml[p] = make_float2(-infinity(), 0.0f);
            const float4* const source =
                reinterpret_cast<const float4*>(args.partial_o + at * Config::head_dim_vo + column);
            o[p][0] = source[0];
            o[p][1] = source[1];
        }
        float values[kAtOnce][8];
#pragma unroll
        for (int p = 0; p < kAtOnce; ++p) {
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
