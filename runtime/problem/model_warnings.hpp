// What a reader of a model's plan must know and could not see from it.
#pragma once

#include <vector>

#include "attnsmith/error.hpp"
#include "attnsmith/spec.hpp"
#include "problem/model_reader.hpp"

namespace attnsmith::problem {

// Of a type that nobody taught the reader, of towers that are not planned and, where anything is planned, of
// fields that speak of attention and that nothing read. To be called when everything else was read.
std::vector<ModelWarning> find_warnings(const ModelReader& model, bool planned);

// What ModelOptions::strict refuses: unsupported parts by their names, warnings by their fields.
std::vector<Refusal> doubts(const Model& model);

}  // namespace attnsmith::problem
