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
    template <int Keys, int Columns>
    __device__ void update(Accumulator<Keys>& s, Accumulator<Columns>& o, float c) {
        float reference[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) o.scale_row(i, raise(s, i, c, reference[i]));
        weigh(s, reference, c);
    }

    // The same without O, which the caller has to multiply by `rescale`.
    template <int Keys>
    __device__ void update(Accumulator<Keys>& s, float c, float (&rescale)[2]) {
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
    template <int Keys>
    __device__ float raise(const Accumulator<Keys>& s, int i, float c, float& reference) {
        float top = maximum[i];
#pragma unroll
        for (int j = 0; j < Keys / 8; ++j) top = fmaxf(top, fmaxf(s[j][2 * i], s[j][2 * i + 1]));
        top = row_max(top);
        reference = top == -infinity() ? 0.0f : top;  // a row that saw nothing yet: exp2(-inf) is 0
        const float rescale = exp2_approx((maximum[i] - reference) * c);
        maximum[i] = top;
        // The same bits in every kernel: not merged with an addition.
        sum[i] = __fmul_rn(sum[i], rescale);
        return rescale;
    }

    template <int Keys>
    __device__ void weigh(Accumulator<Keys>& s, const float (&reference)[2], float c) {
#pragma unroll
        for (int j = 0; j < Keys / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s[j][i] = exp2_approx((s[j][i] - reference[i / 2]) * c);
                sum[i / 2] += s[j][i];
            }
        }
    }
};

}  // namespace attnsmith
