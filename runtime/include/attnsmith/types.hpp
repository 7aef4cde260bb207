// The words of a request. How each is spelled in JSON, on the command line and in Python stands beside it.
#pragma once

#include <cstdint>
#include <string_view>

#include "attnsmith/export.h"
#include "attnsmith/standard_library.hpp"

namespace attnsmith {

// What is computed; spelled as they are named.
enum class Op : std::uint8_t { attention, mla, merge, append, top_k };
// Of an element; spelled as they are named. e4m3 and e5m2 are floats of 8 bits: e4m3 has 4 bits of exponent,
// no infinities and 448 as its largest (torch.float8_e4m3fn); e5m2 has 5 and IEEE's infinities. A tensor of
// uint8 is taken as the 8-bit float that the spec says.
enum class DType : std::uint8_t { fp16, bf16, fp32, int32, int64, e4m3, e5m2, uint8 };
// Which keys a query sees before a window narrows them; spelled as they are named.
enum class Mask : std::uint8_t { full, causal };
// How keys and values lie in memory: one extent for each sequence, one after another with Batch::kv_indptr,
// or in pages of a table; spelled as they are named.
enum class KvStorage : std::uint8_t { dense, ragged, paged };
// Order of a page's axes, spelled as they are named: NHD is [page_size, kv_heads, head_dim], HND is
// [kv_heads, page_size, head_dim].
enum class PageOrder : std::uint8_t { NHD, HND };
// What products are computed in; spelled "default" and "high".
enum class Precision : std::uint8_t { standard, high };
// Whether a row's bits may depend on the batch that it is in; spelled "default" and "bitwise".
enum class Consistency : std::uint8_t { standard, bitwise };

// What each stored key and value is multiplied by to give the number that it stands for: nothing, one scale
// for all, one for each KV head, one for each head of each token, or one for each 128 columns of these;
// spelled as they are named.
enum class KvScale : std::uint8_t { none, tensor, head, token_head, block128 };

// How op append finds the place of a token in the cache: a slot that the caller states for each, or behind
// the keys of its sequence, whose lengths and pages are those of Batch; spelled as they are named.
enum class Slots : std::uint8_t { mapping, table };
// Which columns op append rotates with one another: those half of the rotary columns apart (GPT-NeoX, Llama),
// or neighbours (GPT-J); spelled as they are named.
enum class Rope : std::uint8_t { none, half, interleaved };
// What op append takes the angles of a rotation from: cosines and sines of each position, or frequencies;
// spelled as they are named.
enum class RopeTable : std::uint8_t { cos_sin, frequencies };

// Bytes of one element.
constexpr std::int64_t size_of(DType dtype) {
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

// Whether it is a float of 8 bits.
constexpr bool is_fp8(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }

// Whether each token has scales of its own.
constexpr bool is_of_tokens(KvScale scale) {
    return scale == KvScale::token_head || scale == KvScale::block128;
}

// A value's word in JSON, on the command line and in Python.
ATTNSMITH_API std::string_view to_string(Op value);
ATTNSMITH_API std::string_view to_string(DType value);
ATTNSMITH_API std::string_view to_string(Mask value);
ATTNSMITH_API std::string_view to_string(KvStorage value);
ATTNSMITH_API std::string_view to_string(PageOrder value);
ATTNSMITH_API std::string_view to_string(Precision value);
ATTNSMITH_API std::string_view to_string(Consistency value);
ATTNSMITH_API std::string_view to_string(KvScale value);
ATTNSMITH_API std::string_view to_string(Slots value);
ATTNSMITH_API std::string_view to_string(Rope value);
ATTNSMITH_API std::string_view to_string(RopeTable value);

}  // namespace attnsmith
