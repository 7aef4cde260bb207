// An element of a tensor lies at begin + sum(index[axis] * stride[axis]), and two tensors of one wide buffer
// can interleave without sharing a byte. Three arguments prove that, each exact in what it claims:
//   ranges:   all of a lies before b or after it;
//   residues: modulo a stride S, axes whose stride is a multiple of S vanish. If what remains of a and of b
//   lies in
//             disjoint arcs modulo S, nothing is shared (slices of packed [tokens, q + k + v] rows, S the
//             row);
//   common axis: both have an axis of stride B, and what remains of both lies within less than B of one
//   another. Then
//             a shared byte has to come from the same step of that axis, and the axis can be left out
//             (batches of packed rows, with padding between them).
#include "problem/tensors/overlap.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace attnsmith::problem {
namespace {

// Sums of products of 64-bit numbers, below kLargest each, cannot overflow.
__extension__ using Wide = __int128;
constexpr std::int64_t kLargest = std::int64_t{1} << 50;

struct Axis {
    std::int64_t extent = 0;  // at least 2
    Wide stride = 0;          // bytes, above 0
};

// A short list without an allocation: a bind makes many.
class Axes {
  public:
    void add(Axis axis) { list_[count_++] = axis; }
    bool has(Wide stride) const { return std::ranges::find(begin(), end(), stride, &Axis::stride) != end(); }
    void remove(Wide stride) {
        Axis* found = std::ranges::find(list_.data(), list_.data() + count_, stride, &Axis::stride);
        std::copy(found + 1, list_.data() + count_, found);
        --count_;
    }
    // By insertion: of std::sort on so short a list GCC 12 believes that it leaves the array.
    void sort_by_stride() {
        for (std::size_t i = 1; i < count_; ++i) {
            for (std::size_t j = i; j > 0 && list_[j].stride < list_[j - 1].stride; --j)
                std::swap(list_[j], list_[j - 1]);
        }
    }
    const Axis* begin() const { return list_.data(); }
    const Axis* end() const { return list_.data() + count_; }

  private:
    std::array<Axis, Tensor::kMaxRank> list_{};
    std::size_t count_ = 0;
};

struct Footprint {
    Wide begin = 0;    // address of the lowest byte
    Wide element = 0;  // bytes
    Axes axes;         // those that step: extent above 1, stride not 0
    bool empty = false;
    bool known = true;  // false: too large to reason about
};

Footprint footprint_of(const Tensor& tensor) {
    Footprint result;
    result.begin = reinterpret_cast<std::uintptr_t>(tensor.data);
    result.element = size_of(tensor.dtype);
    result.known = tensor.rank >= 0 && tensor.rank <= Tensor::kMaxRank && result.element > 0;
    for (std::size_t i = 0; result.known && i < static_cast<std::size_t>(tensor.rank); ++i) {
        const std::int64_t extent = tensor.shape[i];
        const std::int64_t stride = tensor.strides[i];
        if (extent <= 0) result.empty = true;
        if (extent <= 1) continue;
        result.known = extent < kLargest && stride < kLargest && stride > -kLargest;
        if (!result.known) break;
        const Wide bytes = static_cast<Wide>(stride) * result.element;
        if (bytes < 0) result.begin += bytes * (extent - 1);
        if (bytes != 0) result.axes.add({extent, bytes < 0 ? -bytes : bytes});
    }
    return result;
}

// The bytes that a tensor lies within: from `begin` to before `end`.
struct Range {
    std::int64_t begin = 0, end = 0;
};

// Nothing of a tensor without elements, or where 64 bits do not hold the addresses. Most tensors lie apart as
// ranges, which this finds in a fraction of the time that footprints take.
std::optional<Range> range_of(const Tensor& tensor) {
    const std::int64_t element = size_of(tensor.dtype);
    if (tensor.rank < 0 || tensor.rank > Tensor::kMaxRank || element <= 0) return std::nullopt;
    Range range;
    range.begin = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(tensor.data));
    if (__builtin_add_overflow(range.begin, element, &range.end)) return std::nullopt;
    for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.rank); ++i) {
        std::int64_t bytes = 0;
        if (tensor.shape[i] <= 0 || __builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &bytes) ||
            __builtin_mul_overflow(bytes, element, &bytes))
            return std::nullopt;
        std::int64_t& side = bytes < 0 ? range.begin : range.end;
        if (__builtin_add_overflow(side, bytes, &side)) return std::nullopt;
    }
    return range;
}

// Bytes from the lowest to the highest, of the axes that `counts`.
template <typename Predicate>
Wide span_of(const Footprint& footprint, Predicate counts) {
    Wide span = footprint.element;
    for (const Axis& axis : footprint.axes) {
        if (counts(axis)) span += (axis.extent - 1) * axis.stride;
    }
    return span;
}

Wide span_of(const Footprint& footprint) {
    return span_of(footprint, [](const Axis&) { return true; });
}

Wide positive_remainder(Wide value, Wide modulus) {
    const Wide remainder = value % modulus;
    return remainder < 0 ? remainder + modulus : remainder;
}

bool apart_by_range(const Footprint& a, const Footprint& b) {
    return a.begin >= b.begin + span_of(b) || b.begin >= a.begin + span_of(a);
}

bool apart_by_residue(const Footprint& a, const Footprint& b, Wide modulus) {
    const auto remains = [&](const Axis& axis) { return axis.stride % modulus != 0; };
    const Wide offset = positive_remainder(a.begin - b.begin, modulus);
    return offset >= span_of(b, remains) && offset + span_of(a, remains) <= modulus;
}

Footprint without_axis(const Footprint& footprint, Wide stride) {
    Footprint result = footprint;
    result.axes.remove(stride);
    return result;
}

bool apart(const Footprint& a, const Footprint& b);

bool apart_without_axis(const Footprint& a, const Footprint& b, Wide stride) {
    Footprint rest_a = without_axis(a, stride);
    Footprint rest_b = without_axis(b, stride);
    const Wide remainder = positive_remainder(a.begin - b.begin, stride);
    // The step of b's axis that a's first element meets is the one below it or the one above.
    for (const Wide offset : {remainder, remainder - stride}) {
        const bool within_one_step =
            offset + span_of(rest_a) - 1 < stride && offset - span_of(rest_b) + 1 > -stride;
        if (!within_one_step) continue;
        rest_a.begin = offset;
        rest_b.begin = 0;
        if (apart(rest_a, rest_b)) return true;
    }
    return false;
}

bool apart(const Footprint& a, const Footprint& b) {
    if (apart_by_range(a, b)) return true;
    const auto by_residue = [&](const Axis& axis) { return apart_by_residue(a, b, axis.stride); };
    if (std::ranges::any_of(a.axes, by_residue) || std::ranges::any_of(b.axes, by_residue)) return true;
    return std::ranges::any_of(a.axes, [&](const Axis& axis) {
        return b.axes.has(axis.stride) && apart_without_axis(a, b, axis.stride);
    });
}

}  // namespace

bool may_overlap(const Tensor& a, const Tensor& b) {
    if (a.data == nullptr || b.data == nullptr) return false;
    if (const auto first = range_of(a), second = range_of(b); first && second) {
        if (first->begin >= second->end || second->begin >= first->end) return false;
    }
    const Footprint one = footprint_of(a);
    const Footprint other = footprint_of(b);
    if (one.empty || other.empty) return false;
    return !one.known || !other.known || !apart(one, other);
}

bool may_overlap_itself(const Tensor& tensor) {
    Footprint footprint = footprint_of(tensor);
    if (footprint.empty) return false;
    for (int i = 0; i < std::clamp(tensor.rank, 0, Tensor::kMaxRank); ++i) {
        const auto axis = static_cast<std::size_t>(i);
        if (tensor.shape[axis] > 1 && tensor.strides[axis] == 0) return true;
    }
    if (!footprint.known) return true;
    // Each axis steps over all that the smaller strides reach: true of every permutation and slice of a
    // packed tensor.
    footprint.axes.sort_by_stride();
    Wide reach = footprint.element;
    for (const Axis& axis : footprint.axes) {
        if (axis.stride < reach) return true;
        reach += (axis.extent - 1) * axis.stride;
    }
    return false;
}

}  // namespace attnsmith::problem
