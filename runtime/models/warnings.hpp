// What a reader of a model's plan must know and could not see from it.
#pragma once

#include <vector>

#include "attnsmith/error.hpp"
#include "attnsmith/spec.hpp"
#include "models/reader.hpp"

namespace attnsmith::problem {

// Warns of a type that nobody taught the reader, of towers that are not planned and, where anything is
// planned, of fields that speak of attention and that nothing read, or that code of the type does not read.
// To be called when everything else was read.
std::vector<ModelWarning> find_warnings(const ModelReader& model, const std::vector<ModelAttention>& planned);

// Warns of code that comes with the model and is not the code that the reader was taught. A class of a type
// that transformers has is the type's own where its name is the type's and then nothing but a task:
// LlamaForCausalLM or LlamaModel, but neither LlamaEncoderModel nor LlamaBiForMNTP. Code that bears the
// type's own names cannot be told apart by a file. AutoConfig and AutoTokenizer compute no attention.
std::vector<ModelWarning> find_own_code(const ModelReader& model, bool bidirectional);

// What changes results comes first.
void sort_by_weight(std::vector<ModelWarning>& warnings);

// What ModelOptions::strict refuses: unsupported parts by their names, warnings by their fields.
std::vector<Refusal> doubts(const Model& model);

}  // namespace attnsmith::problem
