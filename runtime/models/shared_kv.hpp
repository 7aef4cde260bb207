// Layers without keys and values of their own, which read those of an earlier layer: the last ones of Gemma
// 3n and Gemma 4. Their attention is the same, over another layer's cache.
#pragma once

#include <vector>

#include "models/layers.hpp"
#include "models/reader.hpp"

namespace attnsmith::problem {

// Says beside the kinds that such layers are of whose keys and values they read. Throws InvalidRequest naming
// the field where there is no such layer, or one of other heads.
void note_shared_kv(ModelReader& model, std::vector<LayerKind>& kinds);

}  // namespace attnsmith::problem
