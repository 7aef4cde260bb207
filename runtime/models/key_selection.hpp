// Models whose queries see the keys that an indexer selects. While a sequence has no more keys than are
// selected the indexer takes all of them, so that dense attention is the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "models/reader.hpp"

namespace attnsmith::problem {

inline constexpr std::string_view kSelectedKeys = "index_topk";

// The number of keys that the indexer of a model selects for each query: index_topk. Absent where the model
// has no indexer, and where nobody knows what the indexer of its type selects. Marks the fields of the
// indexer as read. Throws InvalidRequest naming index_topk.
std::optional<ModelReader::Sourced> selected_keys(ModelReader& model);

// Whether index_topk of the type is known to be the number of single keys that selected_keys() gives.
bool selects_single_keys(std::string_view model_type);

// What a reader of a plan must know whose dense attention stands for the selection.
std::string dense_condition(const ModelReader::Sourced& selected);

// Why attention to `kv_len` keys is not planned; empty where dense attention is the same.
std::string selection_refusal(const ModelReader::Sourced& selected, std::int64_t kv_len);

}  // namespace attnsmith::problem
