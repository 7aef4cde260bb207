// Online softmax, as the mma kernel has it: a running maximum m of the logits x seen so far, and the sum of
// exp2(c (x - m)), where c takes a logit to base 2. The maximum stays in the logits' own units until a row is
// closed: differences are taken first and scaled then, so that they are exact where it matters, however large
// the logits are.
#pragma once

#include "common/fragment.cuh"
#include "common/math.cuh"

namespace attnsmith {

// For a thread's two rows of an accumulator.
struct OnlineSoftmax {
    float maximum[2] = {-infinity(), -infinity()};
    float sum[2] = {0.0f, 0.0f};  // of this thread's columns only, until close()

    // Makes logits weights, and rescales O to the new maximum.
    template <class Scores, class Sums>
    __device__ void update(Scores& s, Sums& o, float c) {
        float reference[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) o.scale_row(i, raise(s, i, c, reference[i]));
        weigh(s, reference, c);
    }

    // The same without O, which the caller has to multiply by `rescale`.
    template <class Scores>
    __device__ void update(Scores& s, float c, float (&rescale)[2]) {
        float reference[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) rescale[i] = raise(s, i, c, reference[i]);
        weigh(s, reference, c);
    }

    // Anew for row i.
    __device__ void begin(int i) {
        maximum[i] = -infinity();
        sum[i] = 0.0f;
    }

    __device__ void close() {
#pragma unroll
        for (int i = 0; i < 2; ++i) sum[i] = row_sum(sum[i]);
    }

  private:
    // Row i's maximum with these logits, and what they are taken relative to. Gives what its sums have to be
    // multiplied by, its own of which are.
    template <class Scores>
    __device__ float raise(const Scores& s, int i, float c, float& reference) {
        const float top = row_max(s.top(i, maximum[i]));
        reference = top == -infinity() ? 0.0f : top;  // a row that saw nothing yet: exp2(-inf) is 0
        const float rescale = exp2_approx((maximum[i] - reference) * c);
        maximum[i] = top;
        // The same bits in every kernel: not merged with an addition.
        sum[i] = __fmul_rn(sum[i], rescale);
        return rescale;
    }

    template <class Scores>
    __device__ void weigh(Scores& s, const float (&reference)[2], float c) {
        s.for_each([&](int row, int, float& x) {
            x = exp2_approx((x - reference[row]) * c);
            sum[row] += x;
        });
    }
};

}  // namespace attnsmith
