// TMA descriptors: how the copy engine of sm_90 and later walks a tensor of 16-bit elements, box by box.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "attnsmith/types.hpp"
#include "driver/api.hpp"

namespace attnsmith::driver {

inline constexpr std::size_t kTensorMapBytes = 128;
inline constexpr int kMaxTensorMapRank = 5;
// Bytes that no stride of a map reaches.
inline constexpr std::uint64_t kTensorMapStrideEnd = std::uint64_t{1} << 40;

// Axes innermost first.
struct TensorMapRequest {
    const void* data = nullptr;  // a multiple of 16
    DType dtype = DType::bf16;   // f16 or bf16
    int rank = 0;
    std::array<std::uint64_t, kMaxTensorMapRank> extents{};      // elements, none 0
    std::array<std::uint64_t, kMaxTensorMapRank - 1> strides{};  // bytes, of the axes from the second on
    std::array<std::uint32_t, kMaxTensorMapRank> box{};          // elements; of the first axis 128 bytes
};

// Writes a map whose boxes are swizzled by 128 bytes, and zeros where they reach beyond the tensor. `map` has
// kTensorMapBytes; kernels want it at a multiple of 64. REQUIRES: a current context, though no device is
// touched. Throws DriverError.
void encode_tensor_map(const Api& api, const TensorMapRequest& request, void* map);

}  // namespace attnsmith::driver
