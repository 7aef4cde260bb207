// Which tiles and stages the family's kernels have on a compute capability.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <span>

#include "abi/attention_cuts.h"
#include "families/attention_mma/family.hpp"
#include "families/attention_mma/kernel.hpp"
#include "families/fitting.hpp"
#include "families/tuned.hpp"

namespace attnsmith::families::attention_mma {
namespace {

struct Tile {
    int tile_q, warps_q, warps_kv, load_warps = 0;
    bool wide = false;
    int up_to = 0;  // rows of a sequence and KV head that it is for; 0: any
};
// 16 rows a warp. With at most 16 rows in all, the warps divide the keys instead; not where rows are cut at
// absolute positions, which are one warp's from each cut to the next.
constexpr Tile kTiles[] = {{kDecodeRows, 1, 4}, {64, 4, 1}, {128, 8, 1}};
constexpr Tile kCutTiles[] = {{16, 1, 1, 3}, {32, 2, 1, 2}, {64, 4, 1}};
// At head dims above this no warp can hold 16 rows of O, or not beside what else it needs.
constexpr std::int64_t kMostOfWarp = 256;
constexpr std::int64_t kMostOfWarpInUnits = 128;  // beside what rows' units and scales of tokens take
constexpr Tile kWideTiles[] = {{kDecodeRows, 1, 4, 0, true}, {32, 2, 4, 0, true}, {64, 4, 2, 0, true}};
// Their keys have as many slices, since a row's bits follow from that.
constexpr Tile kWideCutTiles[] = {{16, 1, 4, 0, true}, {32, 2, 4, 0, true}};
constexpr Tile kLatentTiles[] = {{kDecodeRows, 1, 4, 0, true}, {32, 2, 2, 0, true}, {64, 4, 2, 0, true}};
// Each warp of a kernel that is not wide widens all keys and values of 8 bits: of few rows, where that
// counts, wide ones do it once for the values.
// Tiles of few rows are for as many as they have: to read keys again for others takes longer than rows that
// are not there, as was measured (kernel_templates/attention/NOTES.md).
constexpr Tile kWidenedTiles[] = {
    {kDecodeRows, 1, 4, 0, false, kDecodeRows}, {32, 2, 4, 0, true, 32}, {64, 4, 2, 0, true}, {128, 8, 1}};

bool is_cut(const AttentionSpec& spec) { return spec.consistency == Consistency::bitwise; }

bool is_wide(const AttentionSpec& spec) {
    const std::int64_t most = is_cut(spec) && is_per_token(spec.kv_scale) ? kMostOfWarpInUnits : kMostOfWarp;
    return problem::is_latent(spec) || std::max(spec.head_dim_qk, spec.head_dim_vo) > most;
}

// The one for decode is the first.
std::span<const Tile> tiles_of(const AttentionSpec& spec) {
    if (problem::is_latent(spec) && !is_cut(spec)) return kLatentTiles;
    if (is_wide(spec)) return is_cut(spec) ? std::span<const Tile>(kWideCutTiles) : kWideTiles;
    if (is_cut(spec)) return kCutTiles;
    return is_fp8(problem::kv_dtype(spec)) ? std::span<const Tile>(kWidenedTiles) : kTiles;
}

constexpr int kKeyTiles[] = {32, 64, 128};
constexpr int kWideKeyTiles[] = {32, 64};        // two of more hardly fit, and spill
constexpr int kLatentKeyTiles[] = {16, 32, 64};  // of which fewer fit beside the queries

std::span<const int> key_tiles_of(const AttentionSpec& spec) {
    if (problem::is_latent(spec)) return kLatentKeyTiles;
    return is_wide(spec) ? std::span<const int>(kWideKeyTiles) : kKeyTiles;
}

constexpr int kMostStages = 3;
// A tile of latents is loaded while the one before it is in use, keys and values together.
int least_stages(const AttentionSpec& spec) { return problem::is_latent(spec) ? 2 : 1; }
constexpr int kMostRegisters = 255;

// Work that kernels of one query tile are ranked by: long enough that the steady state counts.
constexpr std::int64_t kRankingKeys = 8192;
constexpr std::int64_t kRankingQueries = 4096;

std::string label(const Kernel& kernel) {
    return tile_label(Backend::mma, kernel.tile_q, kernel.tile_kv, kernel.stages);
}

// A pure function of what the spec and the tile decide: whether Q is in registers is not looked at.
Budget budget_of(Kernel kernel, const SmTraits& sm) {
    const auto refused = [](std::string reason) { return Budget{.refusal = std::move(reason)}; };
    const int least_keys = kernel.wide ? 8 : 16;
    if (const int slice = kernel.tile_kv / kernel.warps_kv; slice % 16 != 0 && slice != least_keys) {
        return refused(fmt::format("{} keys do not divide over {} warps by 16{}", kernel.tile_kv,
                                   kernel.warps_kv, kernel.wide ? ", nor into 8 of each" : ""));
    }
    if (kernel.tile_kv > kernel.threads()) {
        return refused(fmt::format("{} keys need as many threads to look them up; the CTA has {}",
                                   kernel.tile_kv, kernel.threads()));
    }
    kernel.queries_in_registers = true;
    // Rows' states leave no room for queries in wide kernels, and in others not beside the units of rows.
    const bool keeps_states = kernel.absolute_cuts && (kernel.wide || kernel.scale_blocks > 0);
    if ((kernel.head_dim_qk > 128 && !kernel.wide) || kernel.latent || keeps_states ||
        registers_of(kernel) > kMostRegisters)
        kernel.queries_in_registers = false;
    const int registers = registers_of(kernel);
    if (registers > kMostRegisters)
        return refused(
            fmt::format("needs about {} registers a thread; there are {}", registers, kMostRegisters));
    // As a look at the machine code of all SMs has shown.
    constexpr int kFirstToSpill = 100;
    if (kernel.latent && size_of(kernel.key_value) == 1 && kernel.warps_q > 1 && sm.sm >= kFirstToSpill)
        return refused("NVRTC 13.0 spills registers of tiles that widen latents for more than 16 rows");
    Budget budget = Budget::of(kernel.threads(), registers, abi::mma_layout(kernel.shape()).total, sm);
    budget.queries_in_registers = kernel.queries_in_registers;
    return budget;
}

// Time for work that fills every SM with as many CTAs as it holds.
double rank(const Planned<Kernel>& planned, const SmTraits& sm) {
    const Kernel& kernel = planned.kernel;
    const int ctas = planned.budget.ctas_per_sm;
    const std::int64_t query_tiles =
        problem::ceil_div(kernel.tile_q == 16 ? 16 : kRankingQueries, kernel.tile_q);
    const CtaWork work{.shared_keys = query_tiles > 1,
                       .key_tiles = static_cast<double>(problem::ceil_div(kRankingKeys, kernel.tile_kv)),
                       .on_busiest = static_cast<double>(query_tiles * ctas)};
    return cost_of(kernel, sm, ctas).clocks(work) / static_cast<double>(ctas);
}

Planned<Kernel> planned(const AttentionSpec& spec, const SmTraits& sm, const Tile& tile, int keys,
                        int stages) {
    Kernel kernel{{attention_constants(spec), tile.warps_q, tile.warps_kv, tile.load_warps, spec.alignment}};
    kernel.tile_q = tile.tile_q;
    kernel.tile_kv = keys;
    kernel.stages = stages;
    kernel.wide = tile.wide;
    if (is_fp8(problem::kv_dtype(spec))) kernel.operand_stage = abi::OperandStage::dequant_in_registers;
    Budget budget = budget_of(kernel, sm);
    kernel.queries_in_registers = budget.queries_in_registers;
    return {kernel, std::move(budget)};
}

// To `fitting`, or why it cannot run.
void try_to_fit(const AttentionSpec& spec, const SmTraits& sm, const Tile& tile, int keys, int stages,
                std::vector<Planned<Kernel>>& fitting, std::vector<Refusal>& rejected) {
    Planned<Kernel> one = planned(spec, sm, tile, keys, stages);
    if (one.refusal())
        rejected.push_back({label(one.kernel), *one.refusal()});
    else
        fitting.push_back(std::move(one));
}

// Those of one query tile that fit.
std::vector<Planned<Kernel>> fitting(const AttentionSpec& spec, const SmTraits& sm, const Tile& tile,
                                     std::vector<Refusal>& rejected) {
    std::vector<Planned<Kernel>> kernels;
    for (const int keys : key_tiles_of(spec)) {
        for (int stages = least_stages(spec); stages <= kMostStages; ++stages)
            try_to_fit(spec, sm, tile, keys, stages, kernels, rejected);
    }
    return kernels;
}

// Where rows are cut: one, as it was measured to be best (kernel_templates/attention/NOTES.md).
std::vector<Planned<Kernel>> fitting_cuts(const AttentionSpec& spec, const SmTraits& sm, const Tile& tile,
                                          std::vector<Refusal>& rejected) {
    constexpr int kStages = 2;
    constexpr std::int64_t kWide = 256;  // columns of K and V
    const int keys = is_wide(spec) || spec.head_dim_qk + spec.head_dim_vo > kWide ? 32 : 64;
    std::vector<Planned<Kernel>> kernels;
    for (int stages = kStages; stages >= least_stages(spec) && kernels.empty(); --stages)
        try_to_fit(spec, sm, tile, keys, stages, kernels, rejected);
    return kernels;
}

// Why tables cannot have the tile, whatever its resources.
std::optional<std::string> unknown_tile(const AttentionSpec& spec, const TuningTile& tile) {
    if (tile.tile_q != kDecodeRows) return fmt::format("tiles have {} query rows", kDecodeRows);
    const std::span<const int> keys = key_tiles_of(spec);
    if (std::ranges::find(keys, tile.tile_kv) == keys.end())
        return fmt::format("tiles have {} keys", fmt::join(keys, ", "));
    if (tile.stages < 1 || tile.stages > kMostStages)
        return fmt::format("there are 1 to {} stages", kMostStages);
    return std::nullopt;
}

// The table's tile for decode, which serves more rows, too, where it is estimated to take the least time.
std::optional<Candidate> candidate_of_table(const AttentionSpec& spec, const SmTraits& sm,
                                            const TuningTable& tuning, std::vector<Refusal>& rejected) {
    const auto make = [&](const TuningTile& tile, KernelConfig& config) -> std::optional<std::string> {
        if (auto reason = unknown_tile(spec, tile)) return reason;
        const Planned<Kernel> tuned = planned(spec, sm, tiles_of(spec).front(), tile.tile_kv, tile.stages);
        if (tuned.refusal()) return tuned.refusal();
        config = config_of(family(), tuned, sm);
        return std::nullopt;
    };
    const std::vector<Candidate> chosen = tuned_candidates(Backend::mma, spec, sm, tuning, make, rejected);
    if (chosen.empty()) return std::nullopt;
    return Candidate{.kernel = chosen.front().kernel, .source = chosen.front().source};
}

std::optional<Candidate> candidate_of_model(const AttentionSpec& spec, const SmTraits& sm, const Tile& tile,
                                            std::vector<Refusal>& rejected) {
    std::vector<Planned<Kernel>> kernels =
        is_cut(spec) ? fitting_cuts(spec, sm, tile, rejected) : fitting(spec, sm, tile, rejected);
    if (kernels.empty()) return std::nullopt;
    std::ranges::stable_sort(kernels, {}, [&](const Planned<Kernel>& one) { return rank(one, sm); });
    for (std::size_t i = 1; i < kernels.size(); ++i) {
        rejected.push_back(
            {label(kernels[i].kernel),
             fmt::format("estimated {:.2f}x the time of {} in the steady state",
                         rank(kernels[i], sm) / rank(kernels[0], sm), label(kernels[0].kernel))});
    }
    return Candidate{config_of(family(), kernels[0], sm)};
}

int registers_of_wide(const Kernel& kernel) {
    // Latents have two tensors of queries and two of keys for one product. Fitted as below.
    const int addresses_and_state = kernel.latent                 ? (kernel.warps_q == 1 ? 93 : 77)
                                    : kernel.queries_in_registers ? 66
                                                                  : 45;
    const int warps = kernel.warps_q * kernel.warps_kv, row_tiles = kernel.warps_q;
    const int output = row_tiles * abi::wide_columns(kernel.head_dim_vo, warps) / 2;
    const int logits = std::max(kernel.tile_kv / kernel.warps_kv, 16) / 2;
    const int weights = 4 * row_tiles, maxima = (kernel.absolute_cuts ? 8 : 4) * row_tiles;
    const int queries = kernel.queries_in_registers ? abi::padded_head_dim(kernel.head_dim_qk) / 4 : 4;
    const bool keeps_states =
        kernel.absolute_cuts && abi::mma_states_in_registers(kernel.wide, kernel.shape().bytes);
    const int states = keeps_states ? output : 0;  // of rows before their last cuts
    // Keys of 8 bits take queries of several steps, what is widened, and the scales of products.
    // Latents have room for them among what they have anyway, unless tokens have scales.
    const bool have_room = kernel.latent && kernel.scale_blocks == 0;
    const int widened = size_of(kernel.key_value) > 1 || have_room ? 0 : 40;
    // Scales of tokens: the units of rows, and the scales of the key that is looked up next.
    const int scales = kernel.scale_blocks == 0 ? 0 : 4 * row_tiles + kernel.scale_blocks + 8;
    return output + states + logits + weights + maxima + queries + widened + scales + addresses_and_state;
}

}  // namespace

int registers_of(const Kernel& kernel) {
    if (kernel.wide) return registers_of_wide(kernel);
    // Fitted to NVRTC 13.0 over all head dims and SMs: what is accepted does not spill (tests/cpu/compiler).
    const int addresses_and_state = kernel.warps_kv > 1 ? 85 : 75;
    constexpr int kQueryFragment = 20;
    const int output = abi::padded_head_dim(kernel.head_dim_vo) / 2;
    // And as many again while P is made of them, or of those of a softmax step.
    const int logits = kernel.tile_kv / kernel.warps_kv / 2;
    const int weights = kernel.absolute_cuts ? abi::kSoftmaxKeys / 4 : logits;
    constexpr int kCuts = 8;  // where they are, and what was found before them
    const int queries =
        kernel.queries_in_registers ? abi::padded_head_dim(kernel.head_dim_qk) / 4 : kQueryFragment;
    const int cuts = !kernel.absolute_cuts ? 0 : kCuts;
    // The units of rows, and the next key's scales; with cuts, where queries are read again.
    const int scales = kernel.scale_blocks == 0 || kernel.absolute_cuts ? 0 : 8;
    return output + logits + weights + queries + addresses_and_state + cuts + scales;
}

std::vector<Candidate> candidates(const AttentionSpec& spec, const SmTraits& sm, const TuningTable& tuning,
                                  std::vector<Refusal>& rejected) {
    std::vector<Candidate> chosen;
    for (const Tile& tile : tiles_of(spec)) {
        const bool decodes = !is_cut(spec) && tile.tile_q == kDecodeRows;
        std::optional<Candidate> one;
        // Tables are of op attention.
        if (decodes && !problem::is_latent(spec)) one = candidate_of_table(spec, sm, tuning, rejected);
        if (!one) one = candidate_of_model(spec, sm, tile, rejected);
        if (!one) continue;
        if (tile.up_to > 0) one->up_to = tile.up_to;
        if (!chosen.empty() && chosen.back().up_to) one->above = *chosen.back().up_to;
        chosen.push_back(*std::move(one));
    }
    return chosen;
}

std::vector<KernelConfig> tunable(const AttentionSpec& spec, const SmTraits& sm) {
    std::vector<KernelConfig> kernels;
    if (is_cut(spec)) return kernels;
    std::vector<Refusal> too_large;
    for (const Planned<Kernel>& fitted : fitting(spec, sm, tiles_of(spec).front(), too_large))
        kernels.push_back(config_of(family(), fitted, sm));
    return kernels;
}

}  // namespace attnsmith::families::attention_mma
