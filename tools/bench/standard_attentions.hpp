// The attentions that are measured and checked where nobody names a model.
#pragma once

#include <vector>

#include "attnsmith/spec.hpp"

namespace attnsmith::bench {

// bf16, causal, paged: head dims 64, 96, 128, 192/128 and 256, each prefill and decode.
std::vector<ModelAttention> standard_attentions();

}  // namespace attnsmith::bench
