// The heads of a model's attention: how many, how wide, and the scale of their logits.
#pragma once

#include <cstdint>
#include <optional>

#include "models/layers.hpp"
#include "models/reader.hpp"

namespace attnsmith::problem {

struct Heads {
    std::int64_t q_heads = 0;
    std::int64_t kv_heads = 0;
    std::int64_t head_dim_qk = 0;
    std::int64_t head_dim_vo = 0;
    std::optional<double> scale;  // absent: 1 / sqrt(head_dim_qk)
    bool latent = false;          // multi-head latent attention: these are the heads of its prefill
};

// The heads of one kind of layers.
Heads read_heads(ModelReader& model, const LayerKind& kind);

// The part of the heads that one of `gpus` has. Throws InvalidRequest("tensor_parallel") where they don't
// divide.
Heads divide_heads(Heads heads, std::int64_t gpus);

}  // namespace attnsmith::problem
