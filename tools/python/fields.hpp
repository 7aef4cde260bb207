// The tensors of a call by numbers: the fields of attnsmith_tensors, then those of attnsmith_batch, in the
// order of attnsmith/_c_api/abi.py's TENSOR_FIELDS and BATCH_FIELDS.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "attnsmith/attnsmith.h"

namespace attnsmith::python {

inline constexpr std::array<const attnsmith_dl_tensor * attnsmith_tensors::*, 11> kTensors = {
    &attnsmith_tensors::q,
    &attnsmith_tensors::k,
    &attnsmith_tensors::v,
    &attnsmith_tensors::o,
    &attnsmith_tensors::lse,
    &attnsmith_tensors::sinks,
    &attnsmith_tensors::alibi_slopes,
    &attnsmith_tensors::q_pe,
    &attnsmith_tensors::kpe,
    &attnsmith_tensors::k_scale,
    &attnsmith_tensors::v_scale};
inline constexpr std::array<const attnsmith_dl_tensor * attnsmith_batch::*, 9> kBatch = {
    &attnsmith_batch::q_indptr,     &attnsmith_batch::q_lens,        &attnsmith_batch::kv_indptr,
    &attnsmith_batch::kv_lens,      &attnsmith_batch::page_table,    &attnsmith_batch::page_indptr,
    &attnsmith_batch::page_indices, &attnsmith_batch::last_page_len, &attnsmith_batch::table_rows};
inline constexpr std::size_t kFields = kTensors.size() + kBatch.size();

inline constexpr std::int64_t kMostAxes = 5;  // of a tensor, as the library has it

// Of an address for each field of attnsmith_tensors.
inline attnsmith_tensor_addresses tensor_addresses(const std::array<void*, kTensors.size()>& addresses) {
    attnsmith_tensor_addresses at{};
    static_assert(offsetof(attnsmith_tensor_addresses, q) == sizeof at.size &&
                      sizeof at == sizeof at.size + sizeof addresses,
                  "an address for each field of attnsmith_tensors, in their order");
    at.size = sizeof at;
    std::memcpy(reinterpret_cast<char*>(&at) + sizeof at.size, addresses.data(), sizeof addresses);
    return at;
}

// A field's number.
consteval int field_of(const attnsmith_dl_tensor* attnsmith_tensors::*member) {
    int number = 0;
    while (kTensors[static_cast<std::size_t>(number)] != member) ++number;
    return number;
}
consteval int field_of(const attnsmith_dl_tensor* attnsmith_batch::*member) {
    int number = 0;
    while (kBatch[static_cast<std::size_t>(number)] != member) ++number;
    return static_cast<int>(kTensors.size()) + number;
}

// Whether a kernel is made for the alignment of a field's tensor.
constexpr bool is_aligned(int field) {
    constexpr int kAligned[] = {field_of(&attnsmith_tensors::q),    field_of(&attnsmith_tensors::k),
                                field_of(&attnsmith_tensors::v),    field_of(&attnsmith_tensors::o),
                                field_of(&attnsmith_tensors::q_pe), field_of(&attnsmith_tensors::kpe)};
    for (const int one : kAligned)
        if (one == field) return true;
    return false;
}

}  // namespace attnsmith::python
