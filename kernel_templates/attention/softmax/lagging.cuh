// Softmax relative to a maximum that lags, as the wgmma kernel has it: a row's reference m follows the
// maximum of its logits only when a logit exceeds it by `slack`, so that in most blocks nobody waits for a
// maximum over lanes, and O is seldom rescaled.
//
//   A weight is exp2(c (s - m)), where c takes a logit to base 2. It is computed as exp2(c s - c m), an fma:
//   rounding that is nothing while c m is small. Where c m is large, m is subtracted from the row's logits
//   first. All by selection: a branch costs more than what it spares.
//
//   Rows may have factors of their own, which take what was multiplied to logits: then s, m and what they are
//   compared with are logits divided by these, and c is the row's.
#pragma once

#include "abi/attention_persistent.h"
#include "common/fragment.cuh"
#include "common/math.cuh"

namespace attnsmith {

// For a thread's two rows of an accumulator.
template <bool HasFactors>
struct LaggingSoftmax {
    static constexpr float kNothing = -3.402823466e38f;  // below any logit
    // What a row has whose factor is NaN: what it sees makes it NaN, in the end, and what it does not see
    // must not.
    static constexpr float kNoFactor = -1.0f;

    // Its factors are read where they are used: a parameter is no register.
    const abi::PersistentArguments& args;

    float m[2];   // the logit that a row's exponents are relative to
    float slack;  // by how much a logit may exceed it, in this warp
    float factor[HasFactors ? 2 : 1];
    float sum[2];      // of the weights, of this thread's columns only
    float rescale[2];  // what O is to be multiplied by when m has been raised

    // `factors`: of the rows, where they have some.
    template <int Count>
    __device__ void start(const float (&factors)[Count]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            begin(i);
            if constexpr (HasFactors) factor[i] = within(factors[i]);
        }
        slack = args.slack;
    }

    // Anew for row i. The slack stays: of other rows there may be large ones.
    __device__ void begin(int i) {
        m[i] = kNothing;
        sum[i] = 0.0f;
    }

    // Looks for the largest logits, and gives c m. Whether O has to be rescaled.
    template <class Scores>
    __device__ bool take(Scores& s, float (&reference)[2]) {
        float top[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            top[i] = s.top(i);
            reference[i] = fmaxf(m[i] * scale(i), kNothing);
        }
        const bool rises =
            __any_sync(0xffffffffu, exceeds(0, top[0], m[0], slack) || exceeds(1, top[1], m[1], slack));
        if (rises) raise(s, top[0], top[1], reference);
        return rises;
    }

    // Logits to weights, of columns First ... End - 1 of the fragment.
    template <int First, int End, class Scores>
    __device__ void weigh(Scores& s, const float (&reference)[2]) {
        s.template for_each<First, End>([&](int row, int, float& x) {
            x = exp2_approx(fmaf(x, scale(row), -reference[row]));
            sum[row] += x;
        });
    }

    // The row's reference as others know maxima: of a row that saw nothing -inf.
    __device__ float maximum(int i) const { return m[i] == kNothing ? -infinity() : as_logit(i, m[i]); }
    // What the row's weights have to be multiplied by to be relative to maximum() itself.
    __device__ float correction(int i) const {
        const float correction = exp2_approx(-excess(i));
        if constexpr (HasFactors)
            return (factor[i] == kNoFactor) & (m[i] != kNothing) ? not_a_number() : correction;
        return correction;
    }

  private:
    __device__ float scale(int i) const { return as_logit(i, args.attention.scale_log2); }
    __device__ float as_logit(int i, float x) const {
        if constexpr (HasFactors)
            return x * fabsf(factor[i]);
        else
            return x;
    }
    // The factor, but so that a logit's factor to base 2 is neither 0 nor infinite, by which masked columns
    // and differences of 0 would be multiplied. Below, all weights are the same anyway; above, all but the
    // largest are 0.
    __device__ float within(float of_row) const {
        constexpr float kLeast = 0x1p-100f, kMost = 0x1p100f;
        const float c = args.attention.scale_log2;
        return of_row == of_row ? fminf(fmaxf(of_row, kLeast / c), kMost / c) : kNoFactor;
    }
    // Whether one is above another by more than `most`, in logits. Any number is above none, however small
    // the factor.
    __device__ bool exceeds(int i, float x, float before, float most) const {
        return as_logit(i, x - before) > most || (HasFactors && before == kNothing && x > kNothing);
    }
    __device__ bool is_large(int i) const {
        constexpr float kLarge = 8192.0f;  // rounded by 2^-11: the largest weight is 1 in 16 bits
        return (m[i] > kNothing) & (fabsf(m[i] * scale(i)) > kLarge);
    }
    __device__ float reference_of(int i) const {
        const float reference = fmaxf(m[i] * scale(i), kNothing);
        return is_large(i) ? 0.0f : reference;
    }
    // c m, less what the weights' exponents are relative to.
    __device__ float excess(int i) const {
        const float excess = fmaf(m[i], scale(i), -reference_of(i));
        return is_large(i) | (m[i] == kNothing) ? 0.0f : excess;
    }

    // Raises m to the maxima of rows where these exceed it by much. With large rows every block comes here,
    // because m is subtracted from their logits.
    template <class Scores>
    __device__ void raise(Scores& s, float top0, float top1, float (&reference)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float before = m[i], excess_before = excess(i), next = row_max(i == 0 ? top0 : top1);
            const bool rises = exceeds(i, next, before, args.slack);
            m[i] = rises ? next : before;
            const float change = exp2_approx(fmaf(before - next, scale(i), excess(i) - excess_before));
            rescale[i] = rises ? change : 1.0f;
            sum[i] *= rescale[i];
            reference[i] = reference_of(i);
        }
        const bool any_large = __any_sync(0xffffffffu, is_large(0) | is_large(1));
        slack = any_large ? -infinity() : args.slack;
        if (!any_large) return;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float base = is_large(i) ? m[i] : 0.0f;
            s.for_each_pair(i, [&](int, float& x, float& y) {
                x -= base;
                y -= base;
            });
        }
    }
};

}  // namespace attnsmith
