// Models whose layers each have an attention of their own, as a search for faster ones leaves them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/reader.hpp"

namespace attnsmith::problem {

// Words of layers whose attention was taken out.
inline constexpr std::string_view kNoOp = "no_op";
inline constexpr std::string_view kLinearMap = "linear_map";

// Nemotron-NAS: block_configs[layer].attention, of which a kernel takes {"n_heads_in_group": 8}. Anything
// else that is on makes a word that is refused: "attention_with_window_length".
std::vector<std::string> block_words(ModelReader& model, const ModelReader::Found& found, std::size_t layers);

// What a layer has of its own, absent where it has nothing of its own.
using LayerNumber = std::optional<ModelReader::Sourced>;

// Heads of each layer, absent where it has no attention; empty where the model has the same everywhere.
struct LayerHeads {
    std::vector<LayerNumber> query, kv;
};
LayerHeads layer_heads(ModelReader& model, std::size_t layers);

// What per_layer_config says of each layer; empty where the model has none. Newer files of Gemma 4 have it in
// global_head_dim's place.
struct LayerOverride {
    LayerNumber q_heads, kv_heads, head_dim;
};
std::vector<LayerOverride> layer_overrides(ModelReader& model, std::size_t layers);

}  // namespace attnsmith::problem
