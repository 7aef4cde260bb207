#include "families/cost.hpp"

#include <algorithm>

#include "families/attention_wgmma/kernel.hpp"

namespace attnsmith::families::attention_wgmma {
namespace {

constexpr double kEfficiency = 0.72;     // of the peak, with softmax of the other warpgroups meanwhile
constexpr double kNextTileClocks = 600;  // of a persistent CTA: the start of a tile, behind the last one's
// One CTA's stages keep this share of the device memory's rate under way.
constexpr double kMemoryShare = 0.85;

// One tile of keys in the one CTA of an SM: loads, products and softmax go on side by side.
double tile_clocks(const Kernel& kernel, const SmTraits& sm, bool shared_keys) {
    const TileWork work = tile_work(kernel, shared_keys);
    const double multiply = work.flops / (sm.wgmma_flops * kEfficiency);
    const double softmax = work.logits * kExpPerLogit;
    const double rate =
        std::min<double>(sm.dram_bytes * kMemoryShare, work.bytes * kernel.stages / work.latency);
    return std::max({multiply, softmax, work.traffic / rate});
}

}  // namespace

double clocks(const KernelConfig& config, const DeviceTraits& device, const Work& work, std::int64_t splits) {
    const auto kernel = config.as<Kernel>();
    const std::int64_t query_tiles = tiling_of(kernel.tile_q, work.of_each).tiles(work.of_each.q_len);
    const CtaWork ctas = cta_work(work, splits, query_tiles, kernel.tile_kv, device.sm_count);
    const double start = kStartClocks + kNextTileClocks * (ctas.on_busiest - 1);
    return start + ctas.on_busiest * static_cast<double>(ctas.key_tiles) *
                       tile_clocks(kernel, device, query_tiles > 1);
}

}  // namespace attnsmith::families::attention_wgmma
