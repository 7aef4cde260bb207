// How a config says what each of its layers is: a list, a pattern, a period, a letter or an index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "problem/model_reader.hpp"

namespace attnsmith::problem {

inline constexpr std::string_view kFull = "full_attention";
inline constexpr std::string_view kSliding = "sliding_attention";
inline constexpr std::string_view kMixer = "mamba";  // stands for any layer that is no attention
inline constexpr std::int64_t kMostLayers = 10000;

// One word for each layer: one of the above, or the config's own.
using LayerWords = std::vector<std::string>;

// Throws InvalidRequest naming the field that says it.
LayerWords layer_words(ModelReader& model, std::size_t layers);

}  // namespace attnsmith::problem
