// What the families' models of time share. Time is in clocks and good for ranking: arithmetic against memory,
// waves, and latency in between.
#pragma once

#include <algorithm>
#include <cstdint>

#include "families/attention.hpp"
#include "families/split.hpp"
#include "families/work.hpp"

namespace attnsmith::families {

inline constexpr double kStartClocks = 2500;      // of a CTA: launch, lengths, first tiles
inline constexpr double kExpPerLogit = 1.0 / 16;  // ex2 over an SM's 16

// What one tile of keys takes in one CTA, whatever the family.
struct TileWork {
    double flops, logits;
    double bytes;    // of K and V, that are loaded
    double traffic;  // of them, from device memory
    double latency;

    // Clocks in which they come, where device memory gives so many bytes a clock.
    double memory_clocks(double dram_bytes) const;
};

// `shared_keys`: neighbouring CTAs read the same keys, which L2 has then.
TileWork tile_work(const AttentionConstants& kernel, bool shared_keys);

// How an attention is laid over the SMs.
struct CtaWork {
    std::int64_t query_tiles;  // of a sequence and KV head
    std::int64_t key_tiles;    // of a split
    double on_busiest;         // CTAs that the busiest SM gets

    // CTAs that are there at once on an SM with room for so many.
    double resident(int ctas_per_sm) const { return std::min<double>(ctas_per_sm, on_busiest); }
};

CtaWork cta_work(const Work& work, std::int64_t splits, std::int64_t query_tiles, int tile_kv, int sm_count);

// Time of CTAs that are not persistent, of which an SM holds so many at once. `tile_clocks`: a tile of keys
// in one of them, as a share of the SM's time.
double clocks_of_ctas(double tile_clocks, int ctas_per_sm, const CtaWork& work);

// What a CTA has with its share of the keys.
struct ShareWork {
    double units;        // tiles of keys
    double tiles;        // query tiles, whole or not
    double ctas;         // that have a share
    double join_clocks;  // for its part in the joins, where there are any
};

ShareWork share_work(const Work& work, const Split& split, std::int64_t query_tiles,
                     const AttentionConstants& kernel);

// Clocks in which the device's memory moves so many bytes.
double transfer_clocks(double bytes, int dram_bytes, int sm_count);

}  // namespace attnsmith::families
