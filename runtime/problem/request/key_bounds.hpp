// Which keys a mask and its windows let through, as an interval around the query's own position: said once,
// for planning, for the kernels' arguments and for counting work.
#pragma once

#include <cstdint>
#include <optional>

#include "attnsmith/spec.hpp"

namespace attnsmith::problem {

// Keys before and behind the query's own position that it sees, at most; absent: no bound on that side.
struct KeyBounds {
    std::optional<std::int64_t> left{}, right{};

    int count() const { return int{left.has_value()} + int{right.has_value()}; }
};

// `spec` is a validated one's.
inline KeyBounds bounds_of(const AttentionSpec& spec) {
    if (spec.mask == Mask::causal) return {spec.window_left, 0};
    return {spec.window_left, spec.window_right};
}

}  // namespace attnsmith::problem
