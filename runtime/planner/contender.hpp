// What planning ranks.
#pragma once

#include <cstdint>

#include "families/family.hpp"

namespace attnsmith::planner {

// An attention kernel with all of its rank that follows from the kernel and its SM alone: a set has it once
// for all sizes.
struct Contender {
    Contender(const families::KernelConfig& attention, const families::SmTraits& sm);

    families::AttentionCost cost;
    bool takes_whole, takes_chunks, takes_shares;
    std::int64_t least_keys;   // of a chunk or a share: whole tiles
    std::int64_t most_shares;  // CTAs that the workspace has room for to count in
};

}  // namespace attnsmith::planner
