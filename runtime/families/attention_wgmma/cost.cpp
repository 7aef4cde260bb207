#include "families/cost.hpp"

#include <algorithm>

#include "families/attention_wgmma/kernel.hpp"

namespace attnsmith::families::attention_wgmma {
namespace {

constexpr double kEfficiency = 0.72;  // of the peak, with softmax of the other warpgroups meanwhile
// What is left of a CTA's rate where a warpgroup widens the keys of each tile (H100: 0.82 to 0.91).
constexpr double kWideningShare = 0.85;
constexpr double kNextTileClocks = 600;  // of a persistent CTA: the start of a tile, behind the last one's
// What the loads of an SM get of the device memory's rate: of one CTA that draws tiles, and of those that
// take shares. (H200: of these 0.96 between pages of 16 keys and all of it between pages of 64; at head dim
// 64, where a byte has twice the logits, 0.75.)
constexpr double kMemoryShare = 0.85;
constexpr double kMemoryOfShares = 0.98;
constexpr double kMemoryOfNarrowShares = 0.75;

double memory_share(const Kernel& kernel) {
    if (!kernel.shares) return kMemoryShare;
    return is_narrow(kernel) ? kMemoryOfNarrowShares : kMemoryOfShares;
}

// One tile of keys in the one CTA of an SM: loads, products and softmax go on side by side.
double tile_clocks(const Kernel& kernel, const SmTraits& sm, bool shared_keys) {
    const TileWork work = tile_work(kernel, shared_keys);
    const double multiply = work.flops / (sm.wgmma_flops * kEfficiency);
    const double softmax = work.logits * kExpPerLogit;
    const double rate =
        std::min<double>(sm.dram_bytes * memory_share(kernel), work.bytes * kernel.stages / work.latency);
    const double share = kernel.operand_stage == abi::OperandStage::dequant_ring ? kWideningShare : 1.0;
    return std::max(std::max(multiply, softmax) / share, work.memory_clocks(rate));
}

}  // namespace

bool is_narrow(const Kernel& kernel) { return kernel.head_dim_qk + kernel.head_dim_vo < 192; }

AttentionCost cost_of(const Kernel& kernel, const SmTraits& sm, int ctas_per_sm) {
    AttentionCost cost = attention_cost(
        kernel, sm, ctas_per_sm, [&](bool shared_keys, int) { return tile_clocks(kernel, sm, shared_keys); });
    cost.next_clocks = kNextTileClocks;
    cost.query_tiles = [](int tile_q, const HeadWork& work) {
        return tiling_of(tile_q, work).tiles(work.q_len);
    };
    return cost;
}

}  // namespace attnsmith::families::attention_wgmma
