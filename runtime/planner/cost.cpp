#include "planner/cost.hpp"

#include <algorithm>
#include <cmath>

#include "planner/ceil_div.hpp"

namespace attnsmith::planner {
namespace {

constexpr double kMemoryLatency = 1200;  // clocks from a request to its data, under load
constexpr double kL2Latency = 500;
constexpr double kStartClocks = 2500;       // of a CTA: launch, lengths, first tiles
constexpr double kMergeClocks = 6000;       // one more kernel
constexpr double kMmaEfficiency = 0.65;     // of the peak, while a warp multiplies
constexpr double kBarrierClocks = 200;      // two barriers a tile, and what a warp waits for at them
constexpr double kL2Reuse = 0.35;           // device-memory traffic of a tile that neighbours read too
constexpr double kAluPerLogit = 8.0 / 128;  // fp32 instructions over an SM's 128 lanes
constexpr double kExpPerLogit = 1.0 / 16;   // ex2 over its 16

constexpr double kWgmmaEfficiency = 0.72;  // of the peak, with softmax of the other warpgroups meanwhile
constexpr double kNextTileClocks = 600;    // of a persistent CTA: the start of a tile, behind the last one's
// Of the device memory's rate, what one CTA's stages keep under way.
constexpr double kWgmmaMemoryShare = 0.85;

// What one tile of keys takes in one CTA, whatever the family.
struct TileWork {
    double flops, logits;
    double bytes;    // of K and V, that are loaded
    double traffic;  // of them, from device memory
    double latency;
};

TileWork tile_work(const KernelConfig& kernel, bool shared_keys) {
    const double logits = kernel.tile_q * kernel.tile_kv;
    const double width = kernel.head_dim_qk + kernel.head_dim_vo;
    const double bytes = 2.0 * kernel.tile_kv * width;
    return {.flops = 2.0 * logits * width,
            .logits = logits,
            .bytes = bytes,
            .traffic = bytes * (shared_keys ? kL2Reuse : 1.0),
            .latency = shared_keys ? kL2Latency : kMemoryLatency};
}

// One tile of keys in the one CTA of an SM: loads, products and softmax go on side by side.
double wgmma_tile_clocks(const KernelConfig& kernel, const DeviceTraits& device, bool shared_keys) {
    const TileWork work = tile_work(kernel, shared_keys);
    const double multiply = work.flops / (device.wgmma_flops * kWgmmaEfficiency);
    const double softmax = work.logits * kExpPerLogit;
    const double rate =
        std::min<double>(device.dram_bytes * kWgmmaMemoryShare, work.bytes * kernel.stages / work.latency);
    return std::max({multiply, softmax, work.traffic / rate});
}

// One tile of keys in one CTA, as a share of the SM's time: what the resident `ctas` of an SM contend for, or
// the chain of one CTA's own steps where they do not fill it.
double tile_clocks(const KernelConfig& kernel, const DeviceTraits& device, bool shared_keys, double ctas) {
    const TileWork work = tile_work(kernel, shared_keys);
    // Loads run (2 stages - 1) half-steps ahead of their use.
    const double steps_ahead = kernel.stages - 0.5;

    const double multiply = work.flops / (device.mma_flops * kMmaEfficiency);
    const double softmax = work.logits * (kAluPerLogit + kExpPerLogit);
    const double rate = std::min<double>(device.dram_bytes, work.bytes * steps_ahead * ctas / work.latency);
    const double memory = work.traffic / rate;
    const double busy = multiply + softmax + kBarrierClocks;
    // Latencies scatter: however far ahead, a part of them is seen.
    const double exposed = std::max(0.1 * work.latency / kernel.stages, work.latency - steps_ahead * busy);
    const double chain = (busy + exposed) / ctas;
    return std::max({multiply, softmax, memory, chain}) + 0.1 * chain;  // overlap is never complete
}

}  // namespace

double estimated_clocks(const KernelConfig& kernel, const DeviceTraits& device, const Work& work,
                        std::int64_t splits) {
    // In double: the largest sizes that are allowed have more CTAs than 64 bits count.
    const auto many = static_cast<double>(work.sequences_and_heads) * static_cast<double>(splits);
    const HeadWork& of_each = work.of_each;
    const std::int64_t query_tiles = kernel.query_tiling(of_each).tiles(of_each.q_len);
    const std::int64_t tiles =
        ceil_div(std::max<std::int64_t>(1, ceil_div(of_each.keys, kernel.tile_kv)), splits);
    const double on_busiest = std::ceil(static_cast<double>(query_tiles) * many / device.sm_count);
    const double resident = std::min<double>(kernel.ctas_per_sm, on_busiest);
    const bool persistent = kernel.family == Family::attention_wgmma;
    const double start = persistent ? kStartClocks + kNextTileClocks * (on_busiest - 1)
                                    : kStartClocks * std::ceil(on_busiest / kernel.ctas_per_sm);
    const double tile = persistent ? wgmma_tile_clocks(kernel, device, query_tiles > 1)
                                   : tile_clocks(kernel, device, query_tiles > 1, resident);
    const double run = on_busiest * static_cast<double>(tiles) * tile;
    const double partials = 4.0 * static_cast<double>(of_each.rows()) * many * kernel.head_dim_vo * 2 /
                            (static_cast<double>(device.dram_bytes) * device.sm_count);
    return start + run + (splits > 1 ? kMergeClocks + partials : 0.0);
}

}  // namespace attnsmith::planner
