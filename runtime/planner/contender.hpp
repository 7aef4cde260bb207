// What planning ranks.
#pragma once

#include <cstdint>

#include "families/attention_family.hpp"

namespace attnsmith::planner {

using families::DeviceTraits;
using families::KernelConfig;
using families::SmTraits;
using families::Split;
using families::SplitPolicy;

// A part shorter than this spends more on its start and its merge than on its keys.
inline constexpr std::int64_t kLeastKeys = 128;

bool has_absolute_cuts(const KernelConfig& attention);

// Keys of the shortest chunk or share, in whole tiles. Where rows are cut at absolute positions, a share is
// divided nowhere else.
std::int64_t least_keys(const KernelConfig& attention);

// An attention kernel with all of its rank that follows from the kernel and its SM alone: a set has it once
// for all sizes.
struct Contender {
    Contender(const KernelConfig& attention, const SmTraits& sm);

    families::AttentionCost cost;
    bool takes_whole, takes_chunks, takes_shares;
    std::int64_t least_keys;   // of a chunk or a share: whole tiles
    std::int64_t most_shares;  // CTAs that the workspace has room for to count in
};

}  // namespace attnsmith::planner
