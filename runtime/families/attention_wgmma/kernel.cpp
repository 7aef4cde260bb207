#include "families/attention_wgmma/kernel.hpp"

#include <algorithm>
#include <numeric>

#include "problem/ceil_div.hpp"

namespace attnsmith::families::attention_wgmma {

int box_keys(const Kernel& kernel, std::int64_t page_size) {
    return kernel.paged && !kernel.reads_workspace()
               ? static_cast<int>(std::gcd(page_size, std::int64_t{kernel.tile_kv}))
               : kernel.tile_kv;
}

std::int64_t QueryTiling::tiles(std::int64_t q_len) const {
    return problem::ceil_div(q_len * group, rows) * shares;
}

namespace {

// Parts of that many heads; there is one tile a token at least of each.
QueryTiling tiling_by(std::int64_t part, std::int64_t shares, int tile_q) {
    return {
        .shares = shares, .group = part, .rows = tile_q / abi::kWgmmaRows * (abi::kWgmmaRows / part) * part};
}

}  // namespace

QueryTiling largest_parts(int tile_q, std::int64_t group) {
    const std::int64_t shares = problem::ceil_div(group, std::int64_t{abi::kWgmmaRows});
    return tiling_by(problem::ceil_div(group, shares), shares, tile_q);
}

QueryTiling tiling_of(int tile_q, const HeadWork& work) {
    const auto half_keys = [&](const QueryTiling& tiling) {
        const std::int64_t tokens = std::min(work.q_len, tiling.rows / tiling.group);
        return static_cast<double>(2 * work.keys + work.bounds * tokens);
    };
    constexpr double kWorthDividing = 31.0 / 32;
    // With every row in use. Smaller parts have no fewer tiles, and no fewer tokens to one.
    const std::int64_t least_tiles = problem::ceil_div(work.rows(), tile_q);
    QueryTiling best = largest_parts(tile_q, work.group);
    double best_cost = static_cast<double>(best.tiles(work.q_len)) * half_keys(best);
    for (std::int64_t part = best.group - 1; part > 0; --part) {
        const std::int64_t shares = problem::ceil_div(work.group, part);
        if (problem::ceil_div(work.group, shares) != part) continue;  // of as many parts the smallest
        const double least_cost = static_cast<double>(std::max(shares, least_tiles)) * half_keys(best);
        if (least_cost >= best_cost * kWorthDividing) break;
        const QueryTiling tiling = tiling_by(part, shares, tile_q);
        const double cost = static_cast<double>(tiling.tiles(work.q_len)) * half_keys(tiling);
        if (cost < best_cost * kWorthDividing) best = tiling, best_cost = cost;
    }
    return best;
}

}  // namespace attnsmith::families::attention_wgmma
