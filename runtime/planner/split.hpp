// How the keys of an attention are divided over CTAs.
#pragma once

#include <cstdint>
#include <limits>

#include "families/work.hpp"
#include "planner/contender.hpp"

namespace attnsmith::planner {

inline constexpr std::int64_t kMostSplits = 256;

struct SplitChoice {
    Split split{};
    double clocks = 0;  // of the attention and, where it leaves one to do, of the merge
};

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// The best split for one kernel: how long its chunks are, or whether it takes shares. Where none takes as
// little as `limit`, it is any, with clocks above the limit. Allocates nothing.
SplitChoice best_split(const Contender& attention, int sm_count, const families::Work& work,
                       double limit = kNoLimit);

// The same for a kernel that launches of any sizes may take.
Split planned_split(const KernelConfig& attention, const DeviceTraits& device, const families::Work& work);

// As many shares as the device holds CTAs.
Split shares_of(const Contender& attention, int sm_count);

}  // namespace attnsmith::planner
