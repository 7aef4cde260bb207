// TMA descriptors: how the copy engine of sm_90 and later walks a tensor of elements of 8 or 16 bits, box by
// box.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attnsmith/types.hpp"
#include "driver/api.hpp"

namespace attnsmith::driver {

inline constexpr std::size_t kTensorMapBytes = 128;
inline constexpr int kMaxTensorMapRank = 5;

// Axes innermost first, as many as `extents` has.
struct MappedTensor {
    const void* data = nullptr;                // a multiple of 16
    DType dtype = DType::bf16;                 // f16 or bf16, or of 8 bits
    std::span<const std::uint64_t> extents{};  // elements, none 0
    std::span<const std::uint64_t> strides{};  // bytes, of the axes from the second on
    std::span<const std::uint32_t> box{};      // elements; of the first axis 128 bytes
};

// Writes a map whose boxes are swizzled by 128 bytes, and zeros where they reach beyond the tensor. `map` has
// kTensorMapBytes; kernels want it at a multiple of 64. REQUIRES: a current context, though no device is
// touched. Throws DriverError.
void encode_tensor_map(const Api& api, const MappedTensor& tensor, void* map);

// Has an encoded map begin at `data`, a multiple of 16; all else stays as it is. Takes no lock and allocates
// nothing. REQUIRES: a current context. Throws DriverError. Every driver that Api::open() takes has this: it
// came with encoding, in CUDA 12.0.
void move_tensor_map(const Api& api, const void* data, void* map);

}  // namespace attnsmith::driver
