// How the keys of an attention are divided over CTAs.
#pragma once

#include "families/work.hpp"
#include "planner/plan.hpp"

namespace attnsmith::planner {

inline constexpr std::int64_t kMostSplits = 256;

struct SplitChoice {
    SplitPlan split{};
    double clocks = 0;  // of the attention and, where it is split, of the merge
};

// The best split for one kernel.
SplitChoice best_split(const KernelConfig& attention, const KernelConfig& merge, const DeviceTraits& device,
                       const families::Work& work);

// The split of a launch with keys up to that length.
families::Split split_of(const SplitPlan& split, int tile_kv, std::int64_t max_kv_len);

}  // namespace attnsmith::planner
