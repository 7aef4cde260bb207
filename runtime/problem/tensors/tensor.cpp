#include "attnsmith/tensor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attnsmith/error.hpp"

namespace attnsmith {
namespace {

std::int64_t multiply(const char* field, std::int64_t a, std::int64_t b) {
    std::int64_t product = 0;
    if (!__builtin_mul_overflow(a, b, &product)) return product;
    throw InvalidRequest(field, fmt::format("{} times {}", a, b), "a size that fits 64 bits");
}

// A program may have set the rank itself.
void check_rank(const Tensor& tensor) {
    if (tensor.rank >= 0 && tensor.rank <= Tensor::kMaxRank) return;
    throw InvalidRequest("rank", std::to_string(tensor.rank), fmt::format("0 to {} axes", Tensor::kMaxRank));
}

void check_axis(const Tensor& tensor, const char* field, int axis) {
    check_rank(tensor);
    if (axis >= 0 && axis < tensor.rank) return;
    throw InvalidRequest(field, std::to_string(axis),
                         fmt::format("an axis of the tensor, whose rank is {}", tensor.rank));
}

// `data` moved by `elements`. On integers: a view of a tensor that is absent, or that describes memory of
// another device, is no pointer into an array of this program.
void* moved(const Tensor& tensor, std::int64_t elements) {
    if (tensor.data == nullptr) return nullptr;
    const std::int64_t bytes = multiply("strides", elements, size_of(tensor.dtype));
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(tensor.data) +
                                   static_cast<std::uintptr_t>(bytes));
}

void copy_axis(Tensor& to, int to_axis, const Tensor& from, int from_axis) {
    to.shape[static_cast<std::size_t>(to_axis)] = from.shape[static_cast<std::size_t>(from_axis)];
    to.strides[static_cast<std::size_t>(to_axis)] = from.strides[static_cast<std::size_t>(from_axis)];
}

// The same memory and type, with no axes yet.
Tensor without_axes(const Tensor& tensor) {
    Tensor result;
    result.data = tensor.data;
    result.dtype = tensor.dtype;
    return result;
}

// Of these extents, with strides of 0.
Tensor of_shape(const void* data, DType dtype, std::span<const std::int64_t> shape) {
    if (shape.size() > static_cast<std::size_t>(Tensor::kMaxRank)) {
        throw InvalidRequest("shape", fmt::format("{} axes", shape.size()),
                             fmt::format("at most {}", Tensor::kMaxRank));
    }
    Tensor tensor;
    tensor.data = const_cast<void*>(data);  // the one type for inputs and outputs; inputs are never written
    tensor.dtype = dtype;
    for (const std::int64_t extent : shape) {
        if (extent < 0) throw InvalidRequest("shape", std::to_string(extent), "extents from 0");
        tensor.shape[static_cast<std::size_t>(tensor.rank++)] = extent;
    }
    return tensor;
}

}  // namespace

Tensor Tensor::contiguous(const void* data, DType dtype, std::initializer_list<std::int64_t> shape) {
    return contiguous(data, dtype, std::span(shape.begin(), shape.size()));
}

Tensor Tensor::contiguous(const void* data, DType dtype, std::span<const std::int64_t> shape) {
    Tensor tensor = of_shape(data, dtype, shape);
    std::int64_t stride = 1;
    for (int axis = tensor.rank - 1; axis >= 0; --axis) {
        tensor.strides[static_cast<std::size_t>(axis)] = stride;
        const std::int64_t extent = tensor.shape[static_cast<std::size_t>(axis)];
        if (extent > 1) stride = multiply("shape", stride, extent);
    }
    return tensor;
}

Tensor Tensor::strided(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                       std::initializer_list<std::int64_t> strides) {
    return strided(data, dtype, std::span(shape.begin(), shape.size()),
                   std::span(strides.begin(), strides.size()));
}

Tensor Tensor::strided(const void* data, DType dtype, std::span<const std::int64_t> shape,
                       std::span<const std::int64_t> strides) {
    Tensor tensor = of_shape(data, dtype, shape);
    if (strides.size() != shape.size()) {
        throw InvalidRequest("strides", fmt::format("{} strides", strides.size()),
                             fmt::format("{}, one for each axis", shape.size()));
    }
    std::ranges::copy(strides, tensor.strides.begin());
    return tensor;
}

std::int64_t Tensor::elements() const {
    check_rank(*this);
    const auto extents = std::span(shape).first(static_cast<std::size_t>(rank));
    if (std::ranges::find(extents, 0) != extents.end()) return 0;
    std::int64_t count = 1;
    for (const std::int64_t extent : extents) count = multiply("shape", count, extent);
    return count;
}

Tensor Tensor::permute(std::initializer_list<int> axes) const {
    check_rank(*this);
    if (axes.size() != static_cast<std::size_t>(rank)) {
        throw InvalidRequest("axes", fmt::format("{} axes", axes.size()),
                             fmt::format("each of the tensor's {} axes once", rank));
    }
    Tensor result = without_axes(*this);
    std::vector<bool> used(static_cast<std::size_t>(rank));
    for (const int axis : axes) {
        check_axis(*this, "axes", axis);
        if (used[static_cast<std::size_t>(axis)]) {
            throw InvalidRequest("axes", fmt::format("axis {} twice", axis), "each axis once");
        }
        used[static_cast<std::size_t>(axis)] = true;
        copy_axis(result, result.rank++, *this, axis);
    }
    return result;
}

Tensor Tensor::select(int axis, std::int64_t index) const {
    check_axis(*this, "axis", axis);
    const std::int64_t extent = shape[static_cast<std::size_t>(axis)];
    if (index < 0 || index >= extent) {
        throw InvalidRequest("index", std::to_string(index), fmt::format("an index below {}", extent));
    }
    Tensor result = without_axes(*this);
    result.data = moved(*this, multiply("strides", index, strides[static_cast<std::size_t>(axis)]));
    for (int from = 0; from < rank; ++from) {
        if (from != axis) copy_axis(result, result.rank++, *this, from);
    }
    return result;
}

Tensor Tensor::slice(int axis, std::int64_t begin, std::int64_t end) const {
    check_axis(*this, "axis", axis);
    const std::int64_t extent = shape[static_cast<std::size_t>(axis)];
    if (begin < 0 || begin > end || end > extent) {
        throw InvalidRequest(begin < 0 || begin > extent ? "begin" : "end",
                             fmt::format("{} to {}", begin, end),
                             fmt::format("0 <= begin <= end <= {}", extent));
    }
    Tensor result = *this;
    result.shape[static_cast<std::size_t>(axis)] = end - begin;
    // An empty slice keeps the base: its begin may be the end of the memory.
    if (begin < end)
        result.data = moved(*this, multiply("strides", begin, strides[static_cast<std::size_t>(axis)]));
    return result;
}

Tensor Tensor::split(int axis, std::int64_t outer) const {
    check_axis(*this, "axis", axis);
    if (rank == kMaxRank) {
        throw InvalidRequest("rank", std::to_string(rank),
                             fmt::format("a tensor of at most {} axes", kMaxRank - 1));
    }
    const std::int64_t extent = shape[static_cast<std::size_t>(axis)];
    if (outer < 1 || extent % outer != 0) {
        throw InvalidRequest("outer", std::to_string(outer),
                             fmt::format("a divisor of the axis's {}", extent));
    }
    Tensor result = without_axes(*this);
    for (int from = 0; from < rank; ++from) {
        if (from == axis) {
            const std::int64_t inner = extent / outer;
            const std::int64_t stride = strides[static_cast<std::size_t>(axis)];
            const auto at = static_cast<std::size_t>(result.rank++);
            result.shape[at] = outer;
            result.strides[at] = outer > 1 ? multiply("strides", stride, inner) : stride;
            result.shape[at + 1] = inner;
            result.strides[at + 1] = stride;
            ++result.rank;
        } else {
            copy_axis(result, result.rank++, *this, from);
        }
    }
    return result;
}

}  // namespace attnsmith
