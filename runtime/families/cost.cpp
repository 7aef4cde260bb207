#include "families/cost.hpp"

#include <algorithm>
#include <cmath>

#include "abi/attention_cuts.h"
#include "abi/attention_share.h"
#include "problem/ceil_div.hpp"

namespace attnsmith::families {
namespace {

constexpr double kMemoryLatency = 1200;  // clocks from a request to its data, under load
constexpr double kL2Latency = 500;
constexpr double kL2Reuse = 0.35;     // device-memory traffic of a tile that neighbours read too
constexpr double kL2Bytes = 28;       // that an SM gets from L2 a clock, when all ask (H200)
constexpr double kJoinClocks = 2500;  // to say that a part is there, and to find the others
constexpr double kJoiningThreads = 128;
constexpr double kMergeClocks = 6000;  // one more kernel
// Bounds are so much below what they bound, and more so than sums are rounded.
constexpr double kBelow = 1 - 1e-9;

}  // namespace

double TileWork::memory_clocks(double dram_bytes) const {
    return std::max(traffic / dram_bytes, bytes / kL2Bytes);
}

TileWork tile_work(const AttentionConstants& kernel, bool shared_keys) {
    const double logits = kernel.tile_q * kernel.tile_kv;
    const double columns = kernel.head_dim_qk + kernel.head_dim_vo;  // that are loaded of a key
    const double bytes = static_cast<double>(storage_bytes(kernel).key_value) * kernel.tile_kv * columns;
    return {.flops = 2.0 * logits * (columns + (kernel.latent ? kernel.head_dim_vo : 0)),
            .logits = logits,
            .bytes = bytes,
            .traffic = bytes * (shared_keys ? kL2Reuse : 1.0),
            .latency = shared_keys ? kL2Latency : kMemoryLatency};
}

double AttentionCost::clocks_of_tile(const CtaWork& work) const {
    const double resident = std::min<double>(ctas_per_sm, work.on_busiest);
    return tile_clocks[work.shared_keys][static_cast<std::size_t>(resident) - 1];
}

double AttentionCost::start_clocks(double on_busiest) const {
    const double rounds = ctas_per_sm == 1 ? on_busiest : std::ceil(on_busiest / ctas_per_sm);
    return kStartClocks + next_clocks * (rounds - 1);
}

double AttentionCost::clocks(const CtaWork& work) const {
    return start_clocks(work.on_busiest) + work.on_busiest * work.key_tiles * clocks_of_tile(work);
}

// In double: the largest sizes that are allowed have more CTAs than 64 bits count.
AttentionClocks::AttentionClocks(const AttentionCost& cost, int sm_count, const Work& work)
    : cost_(cost),
      sm_count_(sm_count),
      sequences_and_heads_(static_cast<double>(work.sequences_and_heads)),
      rows_(static_cast<double>(work.of_each.rows())),
      query_tiles_(static_cast<double>(cost.query_tiles(cost.tile_q, work.of_each))),
      key_tiles_(std::max<std::int64_t>(1, problem::ceil_div(work.of_each.keys, cost.tile_kv))),
      least_tiles_(sequences_and_heads_ * query_tiles_ * static_cast<double>(key_tiles_) / sm_count_ *
                   kBelow),
      least_tile_clocks_(cost.least_tile_clocks[query_tiles_ > 1]) {}

double AttentionClocks::least() const { return kStartClocks + least_tiles_ * least_tile_clocks_ * kBelow; }

double AttentionClocks::on_busiest(std::int64_t chunks) const {
    return std::ceil(query_tiles_ * (sequences_and_heads_ * static_cast<double>(chunks)) / sm_count_);
}

// Partial results are written by the attention and read by the merge.
double AttentionClocks::merge_clocks(std::int64_t chunks) const {
    const double many = sequences_and_heads_ * static_cast<double>(chunks);
    const double bytes = 4.0 * rows_ * many * cost_.head_dim_vo * 2;
    return kMergeClocks + bytes / (cost_.dram_bytes * sm_count_);
}

double AttentionClocks::of(const Split& split) const {
    if (split.policy == SplitPolicy::shares) return of_shares(split);
    const std::int64_t chunks = split.chunks();
    const double attention =
        cost_.clocks({.shared_keys = query_tiles_ > 1,
                      .key_tiles = static_cast<double>(problem::ceil_div(key_tiles_, chunks)),
                      .on_busiest = on_busiest(chunks)});
    return split.policy == SplitPolicy::chunks ? attention + merge_clocks(chunks) : attention;
}

double AttentionClocks::join_clocks(double parts) const {
    const abi::Joining joining = cost_.absolute_cuts ? abi::kPiecesJoining : abi::kPartsJoining;
    const double pieces =
        cost_.absolute_cuts ? abi::most_pieces(static_cast<std::int32_t>(key_tiles_ * cost_.tile_kv)) : parts;
    const double rounds = std::ceil(pieces / joining.at_once);
    const double turns = std::ceil(std::min<double>(rows_, cost_.tile_q) * cost_.head_dim_vo /
                                   (joining.columns * kJoiningThreads));
    double turns_of_joiner = turns;
    if (turns > abi::kTurnsOfOne) {
        const double of_slice = 1 << abi::join_slice_log2(static_cast<std::int32_t>(rounds));
        const double slices = std::ceil(turns / of_slice);
        turns_of_joiner = std::min(turns, std::ceil(slices / std::min(parts, slices)) * of_slice);
    }
    return kJoinClocks + rounds * turns_of_joiner * kMemoryLatency;
}

// There are no more shares than CTAs at once: all in one round, of which each may have parts of several query
// tiles.
double AttentionClocks::of_shares(const Split& split) const {
    const auto of_tile = static_cast<double>(key_tiles_);
    const double all = sequences_and_heads_ * query_tiles_ * of_tile;
    const double of_cta = std::max(std::ceil(all / static_cast<double>(split.parts)),
                                   static_cast<double>(split.keys / cost_.tile_kv));
    const double ctas = std::ceil(all / of_cta);
    const double tiles_of_cta = std::ceil(of_cta / of_tile);
    const double parts = std::ceil(of_tile / of_cta);
    return cost_.clocks({.shared_keys = query_tiles_ > 1,
                         .key_tiles = of_cta,
                         .on_busiest = std::ceil(ctas / sm_count_)}) +
           cost_.next_clocks * (tiles_of_cta - 1) + (parts > 1 ? join_clocks(parts) : 0);
}

std::int64_t AttentionClocks::most_of_round(std::int64_t chunks) const {
    return std::max(chunks, static_cast<std::int64_t>(on_busiest(chunks) * sm_count_ /
                                                      (query_tiles_ * sequences_and_heads_)));
}

// With more chunks the busiest SM has no fewer CTAs, and the merge has more to do. So what is left of the
// limit for tiles says how long a CTA's chunk may be, and with how many chunks none is longer; and again for
// these.
std::optional<std::int64_t> AttentionClocks::fewest_chunks(std::int64_t least, double limit) const {
    while (true) {
        const double busiest = on_busiest(least);
        const double left = limit / kBelow - cost_.start_clocks(busiest) - merge_clocks(least);
        const double tiles = left / least_tile_clocks_;
        if (tiles < std::max(busiest, least_tiles_)) return std::nullopt;
        const double of_cta = std::min(std::floor(tiles / busiest), static_cast<double>(key_tiles_));
        const std::int64_t fewest = problem::ceil_div(key_tiles_, static_cast<std::int64_t>(of_cta));
        if (fewest <= least) return least;
        least = fewest;
    }
}

}  // namespace attnsmith::families
