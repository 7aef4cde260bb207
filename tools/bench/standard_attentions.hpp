// The attentions that are measured and checked where nobody names a model.
#pragma once

#include <vector>

#include "attnsmith/spec.hpp"

namespace attnsmith::bench {

// bf16, causal, paged: head dims 64, 96, 128, 192/128 and 256, each prefill and decode.
std::vector<ModelAttention> standard_attentions();

// What a tuning table is measured by: prefills of every head dim that is tuned, mask and storage of KV. bf16:
// fp16 runs the same instructions at the same rate.
std::vector<ModelAttention> tuning_attentions();
PlanSizes tuning_sizes();

}  // namespace attnsmith::bench
