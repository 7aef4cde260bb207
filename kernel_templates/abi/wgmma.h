// What Hopper's asynchronous products (PTX: wgmma) ask of tiles.
#pragma once

#include "abi/tensor_map.h"

namespace attnsmith::abi {

// Rows of a product, and so of a consumer warpgroup.
inline constexpr int32 kWgmmaRows = 64;

// Columns that one warpgroup can have: those of O in registers and of K in shared memory.
inline constexpr int32 kWgmmaNarrowHeadDim = 256;

// A matrix descriptor tells the tensor core where a tile is (PTX, "Matrix Descriptor Format"); addresses and
// distances are in units of 16 bytes:
//   bits  0-13   the address in shared memory, of 18 bits
//   bits 16-29   from one panel to the next, where the product does not sum over columns
//   bits 32-45   from eight rows of a panel to the next eight
//   bits 62-63   1: swizzled by 128 bytes
// common/wgmma.cuh makes the lower half; the upper half is the same for all tiles.
inline constexpr uint32 kWgmmaDescriptorUpper = 1u << 30 | 8 * kPanelBytes / 16;

}  // namespace attnsmith::abi
