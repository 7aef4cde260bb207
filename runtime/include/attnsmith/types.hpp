// The enumerations of a request. to_string() gives the word that JSON, the command line and Python have for
// an enumerator, and from_string() reads one. More enumerators may be added in later versions: a switch needs
// a default. Their numbers are those of the C ABI and never change.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "attnsmith/export.h"
#include "attnsmith/standard_library.hpp"

namespace attnsmith {

// What is computed. Words: attention, mla, merge, append, top_k.
enum class Op : std::uint8_t {
    attention = 0,  // scaled dot-product attention
    mla = 1,        // latent attention, as DeepSeek-V2 and V3 decode it
    merge = 2,      // joins results of attention over disjoint sets of keys
    append = 3,     // writes new keys and values to a cache
    top_k = 4,      // selects the largest scores of rows
};

// The type of a tensor's elements. Words: fp16, bf16, fp32, int32, int64, e4m3, e5m2, uint8. A tensor of
// uint8 is taken as the 8-bit float that the spec states.
enum class DType : std::uint8_t {
    fp16 = 1,   // IEEE half precision
    bf16 = 2,   // bfloat16
    fp32 = 3,   // IEEE single precision
    int32 = 4,  // signed, 32 bits
    int64 = 5,  // signed, 64 bits
    e4m3 = 6,   // 8-bit float with 4 bits of exponent and no infinities; 448 is its largest (float8_e4m3fn)
    e5m2 = 7,   // 8-bit float with 5 bits of exponent and IEEE's infinities
    uint8 = 8,  // unsigned, 8 bits
};

// Which keys a query sees before a window narrows them. Words: full, causal.
enum class Mask : std::uint8_t {
    full = 0,    // all keys of its sequence
    causal = 1,  // bottom-right aligned: the last query sees the last key
};

// How keys and values lie in memory. Words: dense, ragged, paged.
enum class KvStorage : std::uint8_t {
    dense = 0,   // one extent for each sequence
    ragged = 1,  // one sequence after another, with Batch::kv_indptr
    paged = 2,   // in pages, found by a page table
};

// The order of a page's axes. Words: NHD, HND.
enum class PageOrder : std::uint8_t {
    NHD = 0,  // [page_size, kv_heads, head_dim]
    HND = 1,  // [kv_heads, page_size, head_dim]
};

// What products are computed in. Words: standard, high; "default" is read as standard.
enum class Precision : std::uint8_t {
    standard = 0,  // products of the tensors' types, summed in fp32
    high = 1,      // products and probabilities in fp32
};

// Whether the bits of a row may depend on the batch that it is in. Words: standard, bitwise; "default" is
// read as standard.
enum class Consistency : std::uint8_t {
    standard = 0,  // they may
    bitwise = 1,   // they depend on neither the batch nor the phase
};

// What a stored key or value is multiplied by to give the number that it stands for. Words: none, tensor,
// head, token_head, block128.
enum class KvScale : std::uint8_t {
    none = 0,        // nothing
    tensor = 1,      // one scale for all
    head = 2,        // one scale for each KV head
    token_head = 3,  // one scale for each head of each token
    block128 = 4,    // one scale for each 128 columns of each head of each token
};

// How op append finds the place of a token in the cache. Words: mapping, table.
enum class Slots : std::uint8_t {
    mapping = 0,  // the caller states a slot for each token
    table = 1,    // after the keys of its sequence, whose lengths and pages are those of Batch
};

// Which columns op append rotates with one another. Words: none, half, interleaved.
enum class Rope : std::uint8_t {
    none = 0,         // nothing is rotated
    half = 1,         // columns that are half of the rotary columns apart (GPT-NeoX, Llama)
    interleaved = 2,  // neighbours (GPT-J)
};

// What op append takes the angles of a rotation from. Words: cos_sin, frequencies.
enum class RopeTable : std::uint8_t {
    cos_sin = 0,      // cosines and sines of each position
    frequencies = 1,  // radians a position, for each pair of columns
};

// Bytes of one element of a type.
constexpr std::int64_t size_of(DType dtype) noexcept {
    switch (dtype) {
        case DType::e4m3:
        case DType::e5m2:
        case DType::uint8:
            return 1;
        case DType::fp16:
        case DType::bf16:
            return 2;
        case DType::fp32:
        case DType::int32:
            return 4;
        case DType::int64:
            return 8;
    }
    return 0;
}

// True for the floats of 8 bits, e4m3 and e5m2.
constexpr bool is_fp8(DType dtype) noexcept { return dtype == DType::e4m3 || dtype == DType::e5m2; }

// True if each token has scales of its own: token_head and block128.
constexpr bool is_per_token(KvScale scale) noexcept {
    return scale == KvScale::token_head || scale == KvScale::block128;
}
// The old name of is_per_token().
[[deprecated("use is_per_token()")]] constexpr bool is_of_tokens(KvScale scale) noexcept {
    return is_per_token(scale);
}

// The word of an enumerator in JSON, on the command line and in Python. A value that is no enumerator gives
// "(not an enumerator)".
[[nodiscard]] ATTNSMITH_API std::string_view to_string(Op value) noexcept;
[[nodiscard]] ATTNSMITH_API std::string_view to_string(DType value) noexcept;
[[nodiscard]] ATTNSMITH_API std::string_view to_string(Mask value) noexcept;
[[nodiscard]] ATTNSMITH_API std::string_view to_string(KvStorage value) noexcept;
[[nodiscard]] ATTNSMITH_API std::string_view to_string(PageOrder value) noexcept;
[[nodiscard]] ATTNSMITH_API std::string_view to_string(Precision value) noexcept;
[[nodiscard]] ATTNSMITH_API std::string_view to_string(Consistency value) noexcept;
[[nodiscard]] ATTNSMITH_API std::string_view to_string(KvScale value) noexcept;
[[nodiscard]] ATTNSMITH_API std::string_view to_string(Slots value) noexcept;
[[nodiscard]] ATTNSMITH_API std::string_view to_string(Rope value) noexcept;
[[nodiscard]] ATTNSMITH_API std::string_view to_string(RopeTable value) noexcept;

// The enumerator that a word stands for; absent for a word that is none of the enumeration's. Takes the
// aliases that JSON takes, such as "float16". Every enumeration that has a to_string() has a from_string():
// from_string<DType>("e4m3").
template <class Enumeration>
[[nodiscard]] std::optional<Enumeration> from_string(std::string_view word) noexcept = delete;
template <>
[[nodiscard]] ATTNSMITH_API std::optional<Op> from_string<Op>(std::string_view word) noexcept;
template <>
[[nodiscard]] ATTNSMITH_API std::optional<DType> from_string<DType>(std::string_view word) noexcept;
template <>
[[nodiscard]] ATTNSMITH_API std::optional<Mask> from_string<Mask>(std::string_view word) noexcept;
template <>
[[nodiscard]] ATTNSMITH_API std::optional<KvStorage> from_string<KvStorage>(std::string_view word) noexcept;
template <>
[[nodiscard]] ATTNSMITH_API std::optional<PageOrder> from_string<PageOrder>(std::string_view word) noexcept;
template <>
[[nodiscard]] ATTNSMITH_API std::optional<Precision> from_string<Precision>(std::string_view word) noexcept;
template <>
[[nodiscard]] ATTNSMITH_API std::optional<Consistency> from_string<Consistency>(
    std::string_view word) noexcept;
template <>
[[nodiscard]] ATTNSMITH_API std::optional<KvScale> from_string<KvScale>(std::string_view word) noexcept;
template <>
[[nodiscard]] ATTNSMITH_API std::optional<Slots> from_string<Slots>(std::string_view word) noexcept;
template <>
[[nodiscard]] ATTNSMITH_API std::optional<Rope> from_string<Rope>(std::string_view word) noexcept;
template <>
[[nodiscard]] ATTNSMITH_API std::optional<RopeTable> from_string<RopeTable>(std::string_view word) noexcept;

}  // namespace attnsmith
