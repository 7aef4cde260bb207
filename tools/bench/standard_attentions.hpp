// The attentions that are measured and checked where nobody names a model.
#pragma once

#include <optional>
#include <vector>

#include "attnsmith/spec.hpp"

namespace attnsmith::bench {

// bf16, causal, paged: head dims 64, 96, 128, 192/128 and 256, each prefill and decode.
std::vector<ModelAttention> standard_attentions();

struct TuningAttention {
    ModelAttention attention{};
    std::optional<int> max_rows{};  // of a prefill: packed query rows up to which its tile is the choice
};

// What a tuning table is measured by: long and short prefills of every head dim that is tuned, mask and
// storage of KV, and decodes of every head dim and storage. bf16: fp16 runs the same instructions at the same
// rate.
std::vector<TuningAttention> tuning_attentions();
// The sizes of a long prefill.
PlanSizes tuning_sizes();

}  // namespace attnsmith::bench
