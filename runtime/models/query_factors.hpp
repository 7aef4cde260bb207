// Factors by which a model's own code multiplies q according to its position. No kernel here does, so a note
// tells the caller what to give.
#pragma once

#include <vector>

#include "models/layers.hpp"
#include "models/reader.hpp"

namespace attnsmith::problem {

// Notes each factor with the kinds of layers that have it. Warns of one that the file has and that code of
// the type does not read.
void note_query_factors(ModelReader& model, std::vector<LayerKind>& kinds);

}  // namespace attnsmith::problem
