// A strided view of device memory. It owns nothing; the caller keeps the memory alive while a call is in
// flight.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "attnsmith/export.h"
#include "attnsmith/types.hpp"

namespace attnsmith {

struct ATTNSMITH_API Tensor {
    static constexpr int kMaxRank = 5;

    void* data = nullptr;  // null: the tensor is absent
    DType dtype = DType::bf16;
    int rank = 0;
    std::array<std::int64_t, kMaxRank> shape{};    // elements
    std::array<std::int64_t, kMaxRank> strides{};  // elements

    // Row-major tensor of `shape`. Throws InvalidRequest for a rank over kMaxRank or a negative extent.
    static Tensor contiguous(const void* data, DType dtype, std::initializer_list<std::int64_t> shape);

    // Views; none copies. Each throws InvalidRequest for an axis or index out of range.
    Tensor permute(std::initializer_list<int> axes) const;               // axes in the new order
    Tensor select(int axis, std::int64_t index) const;                   // drops the axis
    Tensor slice(int axis, std::int64_t begin, std::int64_t end) const;  // keeps it
    Tensor split(int axis, std::int64_t outer) const;  // one axis of n into [outer, n / outer]

    explicit operator bool() const noexcept { return data != nullptr; }
    bool operator==(const Tensor&) const = default;
};

}  // namespace attnsmith
