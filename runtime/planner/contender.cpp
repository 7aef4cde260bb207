#include "planner/contender.hpp"

#include "abi/attention_arguments.h"
#include "abi/attention_cuts.h"
#include "families/attention.hpp"
#include "problem/ceil_div.hpp"

namespace attnsmith::planner {

bool has_absolute_cuts(const KernelConfig& attention) {
    return attention.constants.as<families::AttentionConstants>().absolute_cuts;
}

std::int64_t least_keys(const KernelConfig& attention) {
    const std::int64_t least = has_absolute_cuts(attention) ? abi::kLeastCut : kLeastKeys;
    return problem::ceil_div(least, attention.tile_kv()) * attention.tile_kv();
}

Contender::Contender(const KernelConfig& attention, const SmTraits& sm)
    : cost(families::attention_of(attention).cost(attention, sm)),
      takes_whole(families::takes(attention, SplitPolicy::none)),
      takes_chunks(families::takes(attention, SplitPolicy::chunks)),
      takes_shares(families::takes(attention, SplitPolicy::shares)),
      least_keys(planner::least_keys(attention)),
      // Each warpgroup that multiplies counts for itself.
      most_shares(abi::kMostShares / attention.constants.integer("consumers", 1)) {}

}  // namespace attnsmith::planner
