// Fixed-width integers for host and device: NVRTC has no <cstdint>.
#pragma once

#ifdef __CUDACC_RTC__
namespace attnsmith {
using int32 = int;
using int64 = long long;
using uint8 = unsigned char;
using uint16 = unsigned short;
using uint32 = unsigned int;
using uint64 = unsigned long long;
}  // namespace attnsmith
#define ATTNSMITH_HOST_DEVICE __host__ __device__
#else
#include <cstdint>
namespace attnsmith {
using int32 = std::int32_t;
using int64 = std::int64_t;
using uint8 = std::uint8_t;
using uint16 = std::uint16_t;
using uint32 = std::uint32_t;
using uint64 = std::uint64_t;
}  // namespace attnsmith
#define ATTNSMITH_HOST_DEVICE
#endif

namespace attnsmith::abi {

#ifdef __CUDA_ARCH__
__device__ inline int32 larger(int32 a, int32 b) { return max(a, b); }
__device__ inline int32 smaller(int32 a, int32 b) { return min(a, b); }
#else
constexpr int32 larger(int32 a, int32 b) { return a > b ? a : b; }
constexpr int32 smaller(int32 a, int32 b) { return a < b ? a : b; }
#endif

}  // namespace attnsmith::abi

static_assert(sizeof(attnsmith::int64) == 8 && sizeof(attnsmith::int32) == 4);
