// How a config says what each of its layers is: a list, a pattern, a period, a letter or an index.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/reader.hpp"

namespace attnsmith::problem {

inline constexpr std::string_view kFull = "full_attention";
inline constexpr std::string_view kSliding = "sliding_attention";
inline constexpr std::string_view kChunked = "chunked_attention";
inline constexpr std::string_view kMixer = "mamba";  // stands for any layer that is no attention
inline constexpr std::int64_t kMostLayers = 10000;

// The names of the window of layers that slide.
inline constexpr std::array<std::string_view, 4> kWindowFields = {"sliding_window", "sliding_window_size",
                                                                  "attention_window_size", "window_size"};
std::optional<std::int64_t> given_window(ModelReader& model);

// Llama 4 and SmolLM3: which layers have rotary positions.
std::vector<bool> rotating_layers(ModelReader& model, std::size_t layers);

// One word for each layer: one of the above, or the config's own.
using LayerWords = std::vector<std::string>;

// Throws InvalidRequest naming the field that says it.
LayerWords layer_words(ModelReader& model, std::size_t layers);

}  // namespace attnsmith::problem
