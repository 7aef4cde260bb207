// The functions that are exported, and the arguments of each in their order.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "python/fields.hpp"

namespace attnsmith::tvm_ffi {

// Where a tensor belongs: a field of the C ABI by its number (python/fields.hpp), or one of these.
inline constexpr int kOStates = static_cast<int>(python::kFields), kLseStates = kOStates + 1;
inline constexpr std::size_t kTensorPlaces = python::kFields + 2;

enum Option : int {
    kCausal,
    kWindowLeft,
    kWindowRight,
    kAttentionChunk,
    kSoftcap,
    kScale,
    kPrecision,
    kConsistency,
    kKvDType,
    kPageOrder,
    kHeadDimCkv,
    kMaxQLen,
    kMaxKvLen,
    kOptions
};

enum class Kind : std::uint8_t { tensor, tensor_or_none, flag, integer, number, word };

struct Parameter {
    const char* name;
    Kind kind;
    int place;               // of a tensor: its field; else an Option
    const char* fallback;    // what it is where it is left out or None, as text; NULL: it must be given
    const char* field_name;  // the library's name, where it is another one; else NULL

    constexpr bool is_tensor() const { return kind == Kind::tensor || kind == Kind::tensor_or_none; }
};

// How keys are stored, where the function alone says it.
enum class Storage : std::uint8_t { dense, ragged, paged, latent, merge };

struct Function {
    const char* name;
    Storage storage;
    std::span<const Parameter> parameters;

    std::size_t required() const;
    // "attention(q, k, v, out, lse=None, ...)".
    std::string signature() const;
};

// f(name): each of them.
#define ATTNSMITH_TVM_FFI_EXPORTS(f) \
    f(attention) f(varlen_attention) f(paged_attention) f(mla_attention) f(merge_states)

#define ATTNSMITH_DECLARE(name) extern const Function name##_function;
ATTNSMITH_TVM_FFI_EXPORTS(ATTNSMITH_DECLARE)
#undef ATTNSMITH_DECLARE

}  // namespace attnsmith::tvm_ffi
