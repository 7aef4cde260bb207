#include "families/attention_wgmma/kernel.hpp"

#include <algorithm>
#include <numeric>

#include "problem/ceil_div.hpp"

namespace attnsmith::families::attention_wgmma {

int registers_of(const Kernel& kernel) {
    // Fitted to NVRTC 13.0, 12.8 and 12.4: what is accepted does not spill (tests/cpu/compiler).
    const int addresses_and_state = kernel.shares ? 40 : kernel.consumers == 2 ? 32 : 28;
    if (kernel.is_wide()) return abi::padded_head_dim(kernel.head_dim_vo) / 4 + addresses_and_state;
    const int scores = kernel.softcap && kernel.alibi   ? kernel.tile_kv / 8
                       : kernel.softcap || kernel.alibi ? kernel.tile_kv / 32
                                                        : 0;
    const int output = abi::padded_head_dim(kernel.head_dim_vo) / 2;
    const int logits = kernel.tile_kv / 2;
    const int probabilities = kernel.tile_kv / 4;  // 16 bits each
    const int queries = kernel.queries_in_registers ? abi::padded_head_dim(kernel.head_dim_qk) / 4 : 0;
    // What rows have found, until O of it is there; and with ALiBi their slopes and places meanwhile.
    const int cuts = !kernel.absolute_cuts ? 0 : kernel.alibi ? 24 : 16;
    // Factors of products and the queries; of two consumers, which have few, what both transforms keep, too.
    const bool transforms = kernel.softcap && kernel.alibi && kernel.consumers == 2;
    const bool are_stored = abi::wgmma_widens(kernel.shape()) || kernel.widened_ahead;
    const int widened = !are_stored ? 0 : transforms ? 32 : 12;
    return output + logits + probabilities + queries + scores + addresses_and_state + cuts + widened;
}

int box_keys(const Kernel& kernel, std::int64_t page_size) {
    return kernel.paged && !kernel.widened_ahead
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
