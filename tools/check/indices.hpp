// The index arrays of a batch: made from lengths on the host, turned into device images of the case's index
// type.
#pragma once

#include <cstddef>
#include <vector>

#include "check/case.hpp"
#include "check/placement.hpp"
#include "check/random.hpp"

namespace attnsmith::check {

// Indptrs, lengths and page lists for the step's lengths, pages drawn at random. Step::spoil is not applied.
IndexArrays make_indices(const Case& test, const Capacity& capacity, const Step& step, Random& random);

// `values` as i32 or i64, then garbage (huge, negative and plausible numbers) up to `elements`; between guard
// zones of garbage. `row` > 0 spreads rows of that many values to `row_stride` elements.
struct IndexImage {
    std::vector<std::byte> bytes;
    std::size_t first = 0;  // byte of element 0
};
struct IndexShape {
    std::int64_t rows = 1;
    std::int64_t columns = 0;
    std::int64_t row_stride = 0;
};
IndexImage encode_indices(const std::vector<std::int64_t>& values, const IndexShape& shape, DType dtype);

// Garbage that a page list holds past its end.
std::int64_t garbage_index(std::size_t n);

}  // namespace attnsmith::check
