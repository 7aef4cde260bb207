#include <algorithm>

#include "families/attention_mma/kernel.hpp"

namespace attnsmith::families::attention_mma {
namespace {

constexpr double kMmaEfficiency = 0.65;  // of the peak, while a warp multiplies
constexpr double kBarrierClocks = 200;   // two barriers a tile, and what a warp waits for at them
constexpr double kSharedBytes = 128;     // that an SM reads from shared memory a clock
// Share of the device memory's rate that the one CTA of an SM gets from pages, whose rows lie apart (H200:
// between pages of 16 keys, 0.79, and of 64, 0.92); two CTAs get all of it.
constexpr double kPagesAlone = 0.88;
constexpr double kAluPerLogit = 8.0 / 128;  // fp32 instructions over an SM's 128 lanes

// What the warps of a wide kernel read from shared memory for the products with a tile of keys: fragments of
// 512 bytes, of which the narrow kernels read fewer than their products take time for.
double wide_operand_bytes(const Kernel& kernel) {
    if (!kernel.wide) return 0;
    constexpr double kFragment = 512;
    const int warps = kernel.warps_q * kernel.warps_kv, row_tiles = kernel.warps_q;
    const double key_steps = kernel.tile_kv / 16.0;
    const int columns = abi::padded_head_dim(kernel.head_dim_qk) + (kernel.latent ? kernel.head_dim_vo : 0);
    const double first =
        columns / 16.0 * (key_steps / kernel.warps_kv + (kernel.queries_in_registers ? 0 : 1));
    const double second = key_steps * (abi::wide_columns(kernel.head_dim_vo, warps) / 16.0 + row_tiles);
    return kFragment * warps * (first + second);
}

// One tile of keys in one CTA, as a share of the SM's time: what the resident `ctas` of an SM contend for, or
// the chain of one CTA's own steps where they do not fill it.
double tile_clocks(const Kernel& kernel, const SmTraits& sm, bool shared_keys, double ctas) {
    const TileWork work = tile_work(kernel, shared_keys);
    // Loads run (2 stages - 1) half-steps ahead of their use, or where K and V come together whole ones.
    const double steps_ahead = kernel.stages - (kernel.latent ? 1.0 : 0.5);

    const double multiply =
        std::max(work.flops / (sm.mma_flops * kMmaEfficiency), wide_operand_bytes(kernel) / kSharedBytes);
    const double softmax = work.logits * (kAluPerLogit + kExpPerLogit);
    const double dram_bytes = sm.dram_bytes * (kernel.paged && ctas < 2 ? kPagesAlone : 1.0);
    const double rate = std::min(dram_bytes, work.bytes * steps_ahead * ctas / work.latency);
    const double memory = work.memory_clocks(rate);
    // A CTA alone keeps no more quarters of the SM busy than it has warps that multiply.
    const double quarters = std::min(4, kernel.warps_q * kernel.warps_kv);
    const double busy = (multiply + softmax) * 4 / quarters + kBarrierClocks;
    // Latencies scatter: however far ahead, a part of them is seen.
    const double exposed = std::max(0.1 * work.latency / kernel.stages, work.latency - steps_ahead * busy);
    const double chain = (busy + exposed) / ctas;
    return std::max({multiply, softmax, memory, chain}) + 0.1 * chain;  // overlap is never complete
}

}  // namespace

AttentionCost cost_of(const Kernel& kernel, const SmTraits& sm, int ctas_per_sm) {
    AttentionCost cost = attention_cost(kernel, sm, ctas_per_sm, [&](bool shared_keys, int ctas) {
        return tile_clocks(kernel, sm, shared_keys, ctas);
    });
    cost.query_tiles = packed_query_tiles;
    return cost;
}

}  // namespace attnsmith::families::attention_mma
