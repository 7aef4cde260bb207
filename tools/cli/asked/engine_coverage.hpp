// All that an inference engine asks for while it serves a model with attnsmith as its attention backend.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "attnsmith/coverage.hpp"
#include "problem/request/request_field.hpp"

namespace attnsmith::cli {

enum class Engine : std::uint8_t { vllm };

std::vector<std::string_view> engine_names();
std::string_view name_of(Engine engine);
std::optional<Engine> find_engine(std::string_view name);

// Whether the engine decides this option of a model, such as the layout of its cache. Its user decides the
// others.
bool decides(Engine engine, const problem::RequestField& field);

// What the engine's backend launches for a config.json: the model's attentions over the engine's cache and
// the appends that write the cache. `options` are those of problem::coverage_of_model() that the engine does
// not decide; kv_dtype may be vLLM's "auto" or "fp8_per_token_head". context_parallel: over how many GPUs
// decodes divide the keys of a request. Throws InvalidRequest naming the field.
Coverage engine_coverage(Engine engine, std::string_view config_json, const nlohmann::json& options,
                         std::int64_t context_parallel = 1);

}  // namespace attnsmith::cli
