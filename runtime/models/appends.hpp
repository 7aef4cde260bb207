// What op append does to the new tokens of a model's layers on their way into the cache.
#pragma once

#include <string>
#include <vector>

#include "models/layers.hpp"
#include "models/reader.hpp"

namespace attnsmith::problem {

struct LayerAppend {
    AttentionSpec spec;              // of op append, to be validated
    std::vector<std::string> notes;  // what the caller has to know of its operands
    std::string refusal;             // why it cannot be planned; empty where it can
};

// `decode` reads the cache that is written. A type whose rotation or norms nobody taught the reader is
// refused by its name: no field of a config says them.
LayerAppend append_of(ModelReader& model, const LayerKind& kind, const AttentionSpec& decode,
                      const ModelOptions& options);

}  // namespace attnsmith::problem
