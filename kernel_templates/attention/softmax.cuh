// Online softmax: a running maximum m of the logits x seen so far, and l = sum of exp2(c * (x - m)), where c
// takes a logit to base 2. The maximum stays in the logits' own units until a row is closed: differences are
// taken first and scaled then, so that they are exact where it matters, however large the logits are.
#pragma once

#include "common/math.cuh"

namespace attnsmith {

struct RowResult {
    float factor;  // what the unnormalised output is multiplied by
    float lse;     // base 2
};

// Closes a row; `sink` is one more logit without a value, in base 2 (-inf: none). A row that saw nothing has
// m = -inf, l = 0 and gives factor 0 and lse = sink. (fmaxf passes over a NaN: a row of NaN alone has m =
// -inf as well, but its l is NaN.)
__device__ inline RowResult finish_row(float m, float l, float c, float sink) {
    if (m == -infinity() && sink == -infinity())
        return l == 0.0f ? RowResult{0.0f, -infinity()} : RowResult{not_a_number(), not_a_number()};
    const float above = fmaf(m, c, -sink);
    const bool is_top = above >= 0.0f;
    const float weight = is_top ? 1.0f : exp2_approx(above);
    const float total = l * weight + (is_top ? exp2_approx(-above) : 1.0f);
    return {weight * reciprocal(total), (is_top ? m * c : sink) + log2_approx(total)};
}

}  // namespace attnsmith
