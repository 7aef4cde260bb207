// How the keys of an attention are divided over CTAs.
#pragma once

#include "families/work.hpp"
#include "planner/plan.hpp"

namespace attnsmith::planner {

inline constexpr std::int64_t kMostSplits = 256;

struct SplitChoice {
    Split split{};
    double clocks = 0;  // of the attention and, where it leaves one to do, of the merge
};

// The best split for one kernel: how long its chunks are, or whether it takes shares.
SplitChoice best_split(const KernelConfig& attention, const KernelSet& set, const DeviceTraits& device,
                       const families::Work& work);

// As many shares as the device holds CTAs.
Split shares_of(const KernelConfig& attention, const DeviceTraits& device);

// CTAs that the workspace has room for to count in.
std::int64_t most_shares(const KernelConfig& attention);

// That of a launch with these bounds: as planned, but with as many chunks as the keys have, or as many shares
// as can have work.
Split split_of(const Plan& plan, const problem::BoundShape& shape);

}  // namespace attnsmith::planner
