// What device headers name and a test of theirs on the host does not call, or calls as it is on the GPU.
// Included before these headers.
#pragma once

#include <bit>

namespace {

[[maybe_unused]] float __fdividef(float x, float y) { return x / y; }
[[maybe_unused]] float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
[[maybe_unused]] float2 make_float2(float x, float y) { return {x, y}; }
[[maybe_unused]] float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T>
[[maybe_unused]] T __shfl_sync(unsigned, T value, int) {
    return value;
}
template <class T>
[[maybe_unused]] T __shfl_xor_sync(unsigned, T value, int) {
    return value;
}

}  // namespace
