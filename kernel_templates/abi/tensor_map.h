// A tensor as the copy engine (TMA) reads it.
#pragma once

#include "abi/integers.h"

namespace attnsmith::abi {

// A TMA descriptor as cuTensorMapEncodeTiled writes it: opaque, read by the copy engine from the kernel's
// parameters.
struct alignas(64) TensorMap {
    uint64 words[16];
};

// A row of a panel: the widest swizzle of the copy engine and of the tensor core's matrix descriptors. Tiles
// are stored panel by panel, [panel][row][kPanelBytes]; what a panel has beyond the head dim is filled with
// zeros by the copy engine.
inline constexpr int32 kPanelBytes = 128;

// Elements of a panel's row.
ATTNSMITH_HOST_DEVICE constexpr int32 panel_elements(int32 element_bytes) {
    return kPanelBytes / element_bytes;
}

ATTNSMITH_HOST_DEVICE constexpr int32 panels_of(int32 head_dim, int32 element_bytes) {
    return (head_dim * element_bytes + kPanelBytes - 1) / kPanelBytes;
}

}  // namespace attnsmith::abi
