#include <algorithm>
#include <bit>

#include "families/attention_cuda_core/kernel.hpp"

namespace attnsmith::families::attention_cuda_core {
namespace {

constexpr double kIssued = 4;             // warp instructions of an SM a clock
constexpr double kIssueEfficiency = 0.8;  // of them, while warps compute
constexpr double kBarrierClocks = 150;    // a tile: the barrier, and what a warp waits for at it

// Warp instructions of one warp for one step of its lanes over K and V: eight columns of each of its rows.
double step_instructions(const Kernel& kernel) {
    constexpr double kLoadsAndConversions = 2 * (1 + 8);
    const double products = 2.0 * 8 * kernel.rows;
    const double exchanges = 3.0 * (kernel.rows + 4);
    return kLoadsAndConversions + products + exchanges;
}

// Lanes that a row of so many columns takes.
double lanes_of(int head_dim) { return std::bit_ceil(static_cast<unsigned>(head_dim) / 8); }

// One tile of keys in one CTA, as a share of the SM's time: what the `ctas` of an SM contend for, or the
// chain of one CTA's own steps where they do not fill it.
double tile_clocks(const Kernel& kernel, const SmTraits& sm, bool shared_keys, double ctas) {
    const TileWork work = tile_work(kernel, shared_keys);
    const double lanes = (lanes_of(kernel.head_dim_qk) + lanes_of(kernel.head_dim_vo)) / 2;
    const double steps = kernel.tile_kv * lanes / 32 * kernel.warps_q;  // over all warps
    const double logits = work.logits * 25.0 / 32;
    const double arithmetic = (steps * step_instructions(kernel) + logits) / (kIssued * kIssueEfficiency);
    const double tiles_ahead = kernel.stages - 1;
    const double rate = std::min<double>(sm.dram_bytes, work.bytes * tiles_ahead * ctas / work.latency);
    const double memory = work.memory_clocks(rate);
    // A warp issues at most every other clock, so that few warps take longer.
    const double warps = kernel.threads() / 32.0;
    const double busy = arithmetic * std::max(1.0, 2 * kIssued / (warps * ctas)) * ctas + kBarrierClocks;
    const double exposed = std::max(0.0, work.latency - tiles_ahead * busy);
    const double chain = (busy + exposed) / ctas;
    return std::max({arithmetic, memory, chain}) + 0.1 * chain;  // overlap is never complete
}

}  // namespace

AttentionCost cost_of(const Kernel& kernel, const SmTraits& sm, int ctas_per_sm) {
    AttentionCost cost = attention_cost(kernel, sm, ctas_per_sm, [&](bool shared_keys, int ctas) {
        return tile_clocks(kernel, sm, shared_keys, ctas);
    });
    cost.query_tiles = packed_query_tiles;
    return cost;
}

}  // namespace attnsmith::families::attention_cuda_core
