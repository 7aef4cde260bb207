// What must not be planned by the names of its fields alone.
#pragma once

#include <string>

#include "models/reader.hpp"

namespace attnsmith::problem {

// Why a model of an unknown type is not read as a plain decoder: its classes or its fields are those of a
// masked language model, an encoder, a tower or a transformer of diffusers. Empty where it may be, and for
// known types.
std::string encoder_reason(ModelReader& model);

// Why a model of an unknown type is not planned though its fields gave a plan: fields that nothing read name
// heads, groups, an indexer or sparse attention. Empty where none does, and for known types. To be called
// when everything else was read.
std::string unread_structure_reason(const ModelReader& model);

}  // namespace attnsmith::problem
