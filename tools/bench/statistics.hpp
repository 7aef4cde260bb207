// Summaries of repeated measurements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace attnsmith::bench {

// Two in the middle give their mean; nothing gives 0.
inline double median(std::vector<double> values) {
    if (values.empty()) return 0;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    if (values.size() % 2 == 1) return *middle;
    return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

inline double worst(const std::vector<double>& values) {
    return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

}  // namespace attnsmith::bench
