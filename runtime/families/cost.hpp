// The model of time that attention kernels are ranked by. Time is in clocks and good for ranking: arithmetic
// against memory, waves, and latency in between. A family says what a tile of keys takes (its cost.cpp); how
// tiles add up is said here, for all of them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "families/attention.hpp"
#include "families/split.hpp"
#include "families/traits.hpp"
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
    bool shared_keys;   // several query tiles read them
    double key_tiles;   // of a CTA
    double on_busiest;  // CTAs that the busiest SM gets
};

// What follows from a kernel and its SM alone, so that it is counted once for all sizes.
struct AttentionCost {
    static constexpr int kMostCtas = 32;  // that any SM holds

    int tile_q = 1, tile_kv = 1, head_dim_vo = 0;
    bool absolute_cuts = false;
    int ctas_per_sm = 1;                // those of an SM beyond them come in further rounds
    int dram_bytes = 1;                 // of an SM and clock
    double next_clocks = kStartClocks;  // the start of a round, or of a query tile, behind the first
    // How many tiles the query rows of a sequence and KV head take.
    std::int64_t (*query_tiles)(int tile_q, const HeadWork& work) = nullptr;
    // One tile of keys in a CTA, as a share of the SM's time: by whether neighbours read the same keys, and
    // for 1 .. ctas_per_sm CTAs that are there at once.
    std::array<std::array<double, kMostCtas>, 2> tile_clocks{};
    std::array<double, 2> least_tile_clocks{};  // of any number of CTAs

    double clocks_of_tile(const CtaWork& work) const;
    double start_clocks(double on_busiest) const;  // of an SM's CTAs, that many
    // Until the last CTA is done.
    double clocks(const CtaWork& work) const;
};

// `tile_clocks(shared_keys, ctas)` is what the family says of a tile.
template <class TileClocks>
AttentionCost attention_cost(const AttentionConstants& kernel, const SmTraits& sm, int ctas_per_sm,
                             const TileClocks& tile_clocks) {
    AttentionCost cost{.tile_q = kernel.tile_q,
                       .tile_kv = kernel.tile_kv,
                       .head_dim_vo = kernel.head_dim_vo,
                       .absolute_cuts = kernel.absolute_cuts,
                       .ctas_per_sm = ctas_per_sm,
                       .dram_bytes = sm.dram_bytes};
    for (const bool shared_keys : {false, true}) {
        const std::span clocks(cost.tile_clocks[shared_keys].data(), static_cast<std::size_t>(ctas_per_sm));
        for (int ctas = 1; double& one : clocks) one = tile_clocks(shared_keys, ctas++);
        cost.least_tile_clocks[shared_keys] = std::ranges::min(clocks);
    }
    return cost;
}

// The time of a kernel for given work, by how its keys are divided. Refers to the cost.
class AttentionClocks {
  public:
    AttentionClocks(const AttentionCost& cost, int sm_count, const Work& work);

    std::int64_t key_tiles() const { return key_tiles_; }  // of a sequence
    // With the merge, where chunks leave one to do.
    double of(const Split& split) const;
    // However keys are divided, it takes no less.
    double least() const;
    // The fewest chunks, `least` or more, that may take no longer than `limit`: from `least` on, any fewer
    // do. Nothing where all do. A bound of what of() says, for a search that need not ask it for every
    // number.
    std::optional<std::int64_t> fewest_chunks(std::int64_t least, double limit) const;
    // The most chunks whose CTAs the busiest SM gets no more of than of `chunks`.
    std::int64_t most_of_round(std::int64_t chunks) const;

  private:
    double on_busiest(std::int64_t chunks) const;
    double merge_clocks(std::int64_t chunks) const;
    double of_shares(const Split& split) const;
    double join_clocks(double parts) const;  // of a tile that so many CTAs have parts of

    const AttentionCost& cost_;
    double sm_count_, sequences_and_heads_, rows_, query_tiles_;
    std::int64_t key_tiles_;
    double least_tiles_;  // of keys, of the busiest SM
    double least_tile_clocks_;
};

}  // namespace attnsmith::families
