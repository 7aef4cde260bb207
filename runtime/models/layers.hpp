// Which attention each layer of a model has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/reader.hpp"

namespace attnsmith::problem {

// The layers of a model that share one kind of attention.
struct LayerKind {
    std::string name;  // "full_attention", "sliding_attention", or the config's own word
    std::int64_t layers = 0;
    std::vector<std::size_t> members;  // which layers these are, from 0
    bool global = true;  // these layers see all, whatever a window may be; some have larger heads
    std::optional<ModelReader::Sourced> q_heads, kv_heads, head_dim;  // absent: the model's
    std::optional<std::int64_t> window_left, window_right, attention_chunk;
    std::vector<std::string> notes;  // what was assumed of these layers alone
    std::string refusal;             // why it cannot be planned; empty where it can
};

// The heads of the first layer, where the config lists each layer's; what it says for all layers is left out.
LayerKind first_layer(ModelReader& model);

// In the order of their first layers. Layers without attention are left out, with a note.
std::vector<LayerKind> layer_kinds(ModelReader& model, bool bidirectional);

}  // namespace attnsmith::problem
