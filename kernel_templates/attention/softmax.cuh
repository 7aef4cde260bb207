// Online softmax in base 2: a running maximum m and sum l = sum of exp2(x - m) over the logits x seen so far.
#pragma once

#include "common/math.cuh"

namespace attnsmith {

struct RowResult {
    float factor;  // what the unnormalised output is multiplied by
    float lse;     // base 2
};

// Closes a row whose logits had maximum `m` and sum `l`; `sink` is one more logit without a value (-inf:
// none). A row that saw nothing has m = -inf and gives factor 0 and lse = sink.
__device__ inline RowResult finish_row(float m, float l, float sink) {
    const float top = fmaxf(m, sink);
    if (top == -infinity()) return {0.0f, -infinity()};
    const float weight = exp2_approx(m - top);
    const float total = l * weight + exp2_approx(sink - top);
    return {weight / total, top + log2_approx(total)};
}

}  // namespace attnsmith
