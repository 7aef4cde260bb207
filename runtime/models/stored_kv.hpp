// How the model's cache stores keys and values, where the config.json or whoever plans says so.
#pragma once

#include "attnsmith/spec.hpp"
#include "models/reader.hpp"

namespace attnsmith::problem {

// Sets kv_dtype and kv_scale of what all attentions have in common. What the options say wins over the
// config; a scheme of the config that no kernel reads is warned of.
void set_stored_kv(ModelReader& model, const ModelOptions& options, bool bidirectional, AttentionSpec& spec);

// Keys and values that a prefill makes of latents are not the cache's: they are of the dtype.
AttentionSpec with_expanded_keys(ModelReader& model, AttentionSpec spec);

}  // namespace attnsmith::problem
