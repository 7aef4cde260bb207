// What the reader of config.json has been taught of each model_type. A type that is not here is read as a
// decoder, by the names of its fields, and warned of.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace attnsmith::problem {

enum class TypeClass : std::uint8_t {
    unknown,
    decoder,            // causal; its fields say the rest
    encoder,            // every token sees every other, and nothing is cached
    encoder_decoder,    // whether or not the file says so
    wrapper,            // holds a language model's part that it does not change
    image_tokens,       // a wrapper in which the tokens of one image see each other in a prefill
    prefix_lm,          // a wrapper in which the tokens of the prompt see each other
    without_attention,  // mixes tokens in other ways; some have fields of the same names as heads have
};

TypeClass class_of(std::string_view model_type);

// The type whose rules a type follows: itself, or an older one whose attention code it shares. Only class
// defaults are each type's own.
std::string_view code_of(std::string_view model_type);

// The layers that have attention sinks, which no field says.
enum class Sinks : std::uint8_t { none, all, sliding };
Sinks sinks_of(std::string_view model_type);

// Whether models of a known type come with code of their own that the reader was taught, since transformers
// has none of this name or has it under classes of other names.
bool comes_with_code(std::string_view model_type);

// The type of a language model that a file of this type holds, where its part says none itself; empty where
// that is not known. Whether a file of the type describes a language model at all only by holding one.
std::string_view text_type_of(std::string_view model_type);
bool holds_language_model(std::string_view model_type);

// The fields one of which must say what the attention of a type is, since nothing else does and a plain
// decoder would be the wrong guess: hybrids, latent attention and layers that differ. Empty where none must.
std::vector<std::string_view> deciding_fields(std::string_view model_type);

// Why no attention of this type can be planned; empty where it can.
std::string_view refusal_of(std::string_view model_type);

}  // namespace attnsmith::problem
