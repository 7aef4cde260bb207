// What the CTAs of a persistent launch go through, and how they come by it: the host's side of
// kernel_templates/attention/persistent/scheduler.cuh.
#pragma once

#include <cstdint>

#include "families/attention_wgmma/kernel.hpp"
#include "families/config.hpp"
#include "families/launch.hpp"

namespace attnsmith::families::attention_wgmma {

struct Schedule {
    QueryTiling tiling{};
    QueryTiles tiles{};      // of a KV head's part
    std::int64_t items = 0;  // a query tile, a KV head's part and a split each
    // What CTAs draw, how many of these are two items, and how many streams the others are drawn from by
    // turns.
    std::int64_t draws = 0, paired_draws = 0, mixed_streams = 0;
    std::int64_t ctas = 0;
};

Schedule schedule_of(const KernelConfig& kernel, const LaunchContext& context);

}  // namespace attnsmith::families::attention_wgmma
