// A strided view of device memory. It owns nothing; the caller keeps the memory alive while a call is in
// flight.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "attnsmith/export.h"
#include "attnsmith/types.hpp"

namespace attnsmith {

// A strided view of device memory. Shape and strides are in elements, and any stride is honoured or refused
// by name. No device is stated: data is an address in the memory of the device that the kernel is for. A
// Tensor is a plain value that owns nothing: the caller keeps the memory until the launches that use it are
// done. A tensor is absent if its data is null and its rank is 0, as in Tensor{}; a tensor without elements
// may have null data.
struct ATTNSMITH_API Tensor {
    static constexpr int kMaxRank = 5;  // most axes of a tensor: at least 5 in every version

    void* data = nullptr;                          // address of the first element
    DType dtype = DType::bf16;                     // type of the elements
    int rank = 0;                                  // axes in use
    std::array<std::int64_t, kMaxRank> shape{};    // extent of each axis, in elements
    std::array<std::int64_t, kMaxRank> strides{};  // from one index of an axis to the next, in elements

    // A row-major tensor of `shape`. Throws InvalidRequest for a rank over kMaxRank or a negative extent.
    [[nodiscard]] static Tensor contiguous(const void* data, DType dtype,
                                           std::initializer_list<std::int64_t> shape);
    // A row-major tensor of a `shape` whose rank is known at run time. Throws InvalidRequest for a rank over
    // kMaxRank or a negative extent.
    [[nodiscard]] static Tensor contiguous(const void* data, DType dtype,
                                           std::span<const std::int64_t> shape);
    // A tensor of `shape` whose elements lie `strides` apart, in elements. Throws InvalidRequest for a rank
    // over kMaxRank, a negative extent, or another number of strides than of extents.
    [[nodiscard]] static Tensor strided(const void* data, DType dtype,
                                        std::initializer_list<std::int64_t> shape,
                                        std::initializer_list<std::int64_t> strides);
    // A tensor of a `shape` and `strides` whose rank is known at run time, such as a framework's. Throws
    // InvalidRequest for a rank over kMaxRank, a negative extent, or another number of strides than of
    // extents.
    [[nodiscard]] static Tensor strided(const void* data, DType dtype, std::span<const std::int64_t> shape,
                                        std::span<const std::int64_t> strides);

    // A view with the axes in another order: axis i of the view is axis axes[i] of this tensor. Throws
    // InvalidRequest unless each axis is named once.
    [[nodiscard]] Tensor permute(std::initializer_list<int> axes) const;
    // A view of one index of an axis, without that axis. Throws InvalidRequest for an axis or an index out of
    // range.
    [[nodiscard]] Tensor select(int axis, std::int64_t index) const;
    // A view of the indices from `begin` to before `end` of an axis. Throws InvalidRequest for an axis or a
    // range that the tensor does not have.
    [[nodiscard]] Tensor slice(int axis, std::int64_t begin, std::int64_t end) const;
    // A view with an axis of n divided into two, [outer, n / outer]. Throws InvalidRequest for an axis out of
    // range, an `outer` that does not divide n, and a tensor that has kMaxRank axes already.
    [[nodiscard]] Tensor split(int axis, std::int64_t outer) const;

    // The number of elements: the product of the extents, 1 for rank 0. Throws InvalidRequest if that is more
    // than 64 bits hold.
    [[nodiscard]] std::int64_t elements() const;

    // True if the tensor is present.
    explicit operator bool() const noexcept { return data != nullptr || rank != 0; }
    bool operator==(const Tensor&) const = default;
};

}  // namespace attnsmith
