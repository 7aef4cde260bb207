// A strided view of device memory. It owns nothing; the caller keeps the memory alive while a call is in
// flight.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "attnsmith/export.h"
#include "attnsmith/types.hpp"

namespace attnsmith {

// Shape and strides are in elements, and any stride is honoured or refused by name. No device is stated: data
// is an address in the memory of the device that the kernel is for.
struct ATTNSMITH_API Tensor {
    static constexpr int kMaxRank = 5;  // axes at most

    void* data = nullptr;                          // null: the tensor is absent
    DType dtype = DType::bf16;                     // of the elements
    int rank = 0;                                  // axes in use
    std::array<std::int64_t, kMaxRank> shape{};    // elements
    std::array<std::int64_t, kMaxRank> strides{};  // elements

    // Row-major tensor of `shape`. Throws InvalidRequest for a rank over kMaxRank or a negative extent.
    static Tensor contiguous(const void* data, DType dtype, std::initializer_list<std::int64_t> shape);

    // Views; none copies. Each throws InvalidRequest for an axis or index out of range.
    Tensor permute(std::initializer_list<int> axes) const;               // axes in the new order
    Tensor select(int axis, std::int64_t index) const;                   // drops the axis
    Tensor slice(int axis, std::int64_t begin, std::int64_t end) const;  // keeps it
    Tensor split(int axis, std::int64_t outer) const;  // one axis of n into [outer, n / outer]

    // Whether the tensor is present.
    explicit operator bool() const noexcept { return data != nullptr; }
    bool operator==(const Tensor&) const = default;
};

}  // namespace attnsmith
