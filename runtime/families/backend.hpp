#pragma once

#include <cstdint>
#include <string_view>

namespace attnsmith::families {

// What a family of kernels computes with.
enum class Backend : std::uint8_t { mma, wgmma, cuda_core };

std::string_view to_string(Backend backend);

}  // namespace attnsmith::families
