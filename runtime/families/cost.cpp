#include "families/cost.hpp"

#include <algorithm>
#include <cmath>

#include "problem/ceil_div.hpp"

namespace attnsmith::families {
namespace {

constexpr double kMemoryLatency = 1200;  // clocks from a request to its data, under load
constexpr double kL2Latency = 500;
constexpr double kL2Reuse = 0.35;     // device-memory traffic of a tile that neighbours read too
constexpr double kL2Bytes = 28;       // that an SM gets from L2 a clock, when all ask (H200)
constexpr double kJoinClocks = 2500;  // to say that a part is there, and to find the others
constexpr double kJoinBytes = 64;     // of parts that an SM reads from L2 a clock

}  // namespace

double TileWork::memory_clocks(double dram_bytes) const {
    return std::max(traffic / dram_bytes, bytes / kL2Bytes);
}

TileWork tile_work(const AttentionConstants& kernel, bool shared_keys) {
    const double logits = kernel.tile_q * kernel.tile_kv;
    const double width = kernel.head_dim_qk + kernel.head_dim_vo;
    const double bytes = 2.0 * kernel.tile_kv * width;
    return {.flops = 2.0 * logits * width,
            .logits = logits,
            .bytes = bytes,
            .traffic = bytes * (shared_keys ? kL2Reuse : 1.0),
            .latency = shared_keys ? kL2Latency : kMemoryLatency};
}

CtaWork cta_work(const Work& work, std::int64_t splits, std::int64_t query_tiles, int tile_kv, int sm_count) {
    // In double: the largest sizes that are allowed have more CTAs than 64 bits count.
    const auto many = static_cast<double>(work.sequences_and_heads) * static_cast<double>(splits);
    const std::int64_t tiles = std::max<std::int64_t>(1, problem::ceil_div(work.of_each.keys, tile_kv));
    return {.query_tiles = query_tiles,
            .key_tiles = problem::ceil_div(tiles, splits),
            .on_busiest = std::ceil(static_cast<double>(query_tiles) * many / sm_count)};
}

double clocks_of_ctas(double tile_clocks, int ctas_per_sm, const CtaWork& work) {
    const double start = kStartClocks * std::ceil(work.on_busiest / ctas_per_sm);
    return start + work.on_busiest * static_cast<double>(work.key_tiles) * tile_clocks;
}

ShareWork share_work(const Work& work, const Split& split, std::int64_t query_tiles,
                     const AttentionConstants& kernel) {
    const auto of_tile =
        static_cast<double>(std::max<std::int64_t>(1, problem::ceil_div(work.of_each.keys, kernel.tile_kv)));
    const double units =
        static_cast<double>(work.sequences_and_heads) * static_cast<double>(query_tiles) * of_tile;
    ShareWork share{};
    share.units = std::max(std::ceil(units / static_cast<double>(split.parts)),
                           static_cast<double>(split.keys / kernel.tile_kv));
    share.tiles = std::ceil(share.units / of_tile);
    share.ctas = std::ceil(units / share.units);
    const double parts = std::ceil(of_tile / share.units);
    const auto rows = static_cast<double>(std::min<std::int64_t>(work.of_each.rows(), kernel.tile_q));
    if (parts > 1) share.join_clocks = kJoinClocks + parts * rows * 4.0 * kernel.head_dim_vo / kJoinBytes;
    return share;
}

double transfer_clocks(double bytes, int dram_bytes, int sm_count) {
    return bytes / (static_cast<double>(dram_bytes) * sm_count);
}

}  // namespace attnsmith::families
