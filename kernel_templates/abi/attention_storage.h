// How attention's tensors are stored, as far as layouts of shared memory depend on it.
#pragma once

#include "abi/integers.h"

namespace attnsmith::abi {

// Bytes of an element of each tensor. K and V are stored alike but for the columns of the position in latent
// attention, which may be as q's.
struct StorageBytes {
    int32 query, key_value, output, position;
};

// Of the element types that a kernel's source names.
template <class Constants>
ATTNSMITH_HOST_DEVICE constexpr StorageBytes storage_bytes() {
    return {.query = sizeof(typename Constants::Query),
            .key_value = sizeof(typename Constants::KeyValue),
            .output = sizeof(typename Constants::Output),
            .position = sizeof(typename Constants::Position)};
}

// Tensor cores take 16 elements at a time: what is missing is filled with zeros on chip.
ATTNSMITH_HOST_DEVICE constexpr int32 padded_head_dim(int32 head_dim) { return (head_dim + 15) / 16 * 16; }

}  // namespace attnsmith::abi
