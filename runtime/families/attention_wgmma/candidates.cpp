// Which tiles and stages the family's kernels have on a compute capability.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "families/attention_wgmma/budget.hpp"
#include "families/attention_wgmma/family.hpp"
#include "families/attention_wgmma/kernel.hpp"
#include "families/fitting.hpp"
#include "families/tuned.hpp"

namespace attnsmith::families::attention_wgmma {
namespace {

constexpr int kQueryTiles[] = {128, 192};
constexpr int kStages[] = {2, 3};
constexpr std::int64_t kLeastHeadDim = 64, kMostHeadDim = 512;
// Packed query rows of a sequence and KV head that the kernel for few rows is there for: two of its tiles.
constexpr std::int64_t kFewRows = 2 * abi::kWgmmaRows;

// wgmma's steps are 16 keys. Of paged KV those that have large common divisors with pages.
std::vector<int> key_tiles(bool paged) {
    if (paged) return {64, 96, 128, 160, 192};
    std::vector<int> tiles;
    for (int keys = 48; keys <= 256; keys += 16) tiles.push_back(keys);
    return tiles;
}

// Why the family has no such tile at all.
std::optional<std::string> unknown_tile(const TuningTile& tile, bool paged) {
    const auto has = [](const auto& all, int one) {
        return std::find(std::begin(all), std::end(all), one) != std::end(all);
    };
    if (!has(kQueryTiles, tile.tile_q))
        return fmt::format("tiles have {} query rows", fmt::join(kQueryTiles, " or "));
    if (const std::vector<int> keys = key_tiles(paged); !has(keys, tile.tile_kv))
        return fmt::format("tiles of {} KV have {} keys", paged ? "paged" : "contiguous",
                           fmt::join(keys, ", "));
    if (!has(kStages, tile.stages)) return fmt::format("there are {} stages", fmt::join(kStages, " or "));
    return std::nullopt;
}

bool is_widened(const AttentionSpec& spec) { return is_fp8(problem::kv_dtype(spec)); }

struct Tile : TuningTile {
    bool shares = false;         // CTAs take equal shares of the keys; else they draw tiles
    bool dequant_ahead = false;  // keys of 8 bits come from the workspace, as fp16
};

// Latents leave no room for a ring of stored tiles.
abi::OperandStage operand_stage_of(const AttentionSpec& spec, const Tile& tile) {
    using Stage = abi::OperandStage;
    if (tile.dequant_ahead) return Stage::dequant_ahead;
    if (!is_widened(spec)) return Stage::as_loaded;
    return problem::is_latent(spec) ? Stage::dequant_in_place : Stage::dequant_ring;
}

Planned<Kernel> planned(const AttentionSpec& spec, const Tile& tile, const SmTraits& sm) {
    Kernel kernel{attention_constants(spec)};
    kernel.tile_q = tile.tile_q;
    kernel.tile_kv = tile.tile_kv;
    kernel.stages = tile.stages;
    kernel.gather = gathers(spec) && !tile.dequant_ahead;
    kernel.operand_stage = operand_stage_of(spec, tile);
    if (tile.dequant_ahead) kernel.key_value = kWidenedTo;
    kernel.consumers = abi::consumer_warpgroups(kernel.shape());
    kernel.shares = tile.shares;
    auto [budget, registers] = budget_of(kernel, sm);
    kernel.producer_registers = registers.producer;
    kernel.score_registers = registers.scores;
    kernel.consumer_registers = registers.consumer;
    kernel.queries_in_registers = budget.queries_in_registers;
    return {kernel, std::move(budget)};
}

// wgmma is of its architecture alone.
KernelConfig config_of(const Planned<Kernel>& planned, const SmTraits& sm) {
    return families::config_of(family(), planned, sm, "a");
}

bool is_cut(const AttentionSpec& spec) { return spec.consistency == Consistency::bitwise; }

bool is_wide(const AttentionSpec& spec) {
    return problem::is_latent(spec) ||
           std::max(spec.head_dim_qk, spec.head_dim_vo) > abi::kWgmmaNarrowHeadDim;
}

// Of 64 rows, whose CTAs take shares. Decode is bound by memory, so that short tiles do, of which there are
// more to divide. Where rows are cut a tile's keys are a softmax step, the same in every kernel. In wide
// kernels the weights of 64 keys take a panel's row, and of K and V there is room for one tile each, of
// latents, which are both, for two.
Tile tile_for_few_rows(const AttentionSpec& spec) {
    Tile tile{{.backend = Backend::wgmma, .tile_q = abi::kWgmmaRows, .tile_kv = 64, .stages = 2}, true};
    if (is_wide(spec))
        tile.stages = problem::is_latent(spec) ? 2 : 1;
    else if (std::max(spec.head_dim_qk, spec.head_dim_vo) <= 64 && !is_cut(spec))
        tile.tile_kv = 128;
    return tile;
}

std::optional<Candidate> candidate_for_few_rows(const AttentionSpec& spec, const SmTraits& sm,
                                                std::vector<Refusal>& rejected) {
    const Tile tile = tile_for_few_rows(spec);
    const Planned<Kernel> few = planned(spec, tile, sm);
    if (few.refusal()) {
        rejected.push_back(
            {tile_label(Backend::wgmma, tile.tile_q, tile.tile_kv, tile.stages), *few.refusal()});
        return std::nullopt;
    }
    // Where rows are cut others do not divide keys, so that for more rows it may be the best as well.
    Candidate candidate{.kernel = config_of(few, sm)};
    if (!is_cut(spec)) candidate.up_to = kFewRows;
    return candidate;
}

// Where rows are cut at absolute positions, for many of them: the largest tile that there is room for.
std::optional<Planned<Kernel>> kernel_for_many_cut_rows(const AttentionSpec& spec, const SmTraits& sm) {
    Tile tile = tile_for_few_rows(spec);
    tile.shares = false;
    for (auto rows = std::rbegin(kQueryTiles); rows != std::rend(kQueryTiles); ++rows) {
        tile.tile_q = *rows;
        if (Planned<Kernel> many = planned(spec, tile, sm); !many.refusal()) return many;
    }
    return std::nullopt;
}

std::optional<std::string> cut_refusal(const AttentionSpec& spec, const SmTraits& sm) {
    if (auto reason = planned(spec, tile_for_few_rows(spec), sm).refusal()) return reason;
    if (!kernel_for_many_cut_rows(spec, sm))
        return fmt::format("head dims {} and {}: no room for the states of rows that are cut",
                           spec.head_dim_qk, spec.head_dim_vo);
    return std::nullopt;
}

// The kernel of a table's tile, or why there is none.
std::optional<std::string> make_tuned(const AttentionSpec& spec, const Tile& tile, const SmTraits& sm,
                                      KernelConfig& config) {
    if (auto reason = unknown_tile(tile, spec.kv == KvStorage::paged && !tile.dequant_ahead)) return reason;
    const Planned<Kernel> tuned = planned(spec, tile, sm);
    if (tuned.refusal()) return tuned.refusal();
    config = config_of(tuned, sm);
    return std::nullopt;
}

// One CTA an SM that widens has all registers, and so tiles are as large as there is room for beside two as
// they are stored; else beside one.
std::optional<Planned<Kernel>> widened_kernel(const AttentionSpec& spec, const SmTraits& sm, int rows,
                                              bool shares) {
    for (const int stages : {2, 1}) {
        for (const int keys : {160, 128, 96, 64}) {
            Planned<Kernel> widened = planned(
                spec,
                Tile{{.backend = Backend::wgmma, .tile_q = rows, .tile_kv = keys, .stages = stages}, shares},
                sm);
            if (!widened.refusal()) return widened;
        }
    }
    return std::nullopt;
}

// Reads what was widened before it, in the tile that 16-bit keys would have for the most rows.
std::optional<Candidate> candidate_ahead(const AttentionSpec& spec, const SmTraits& sm,
                                         const TuningTable& tuning, std::vector<Refusal>& rejected) {
    AttentionSpec in_workspace = spec;
    in_workspace.kv = KvStorage::dense;
    in_workspace.kv_dtype = spec.dtype;
    std::vector<Candidate> chosen = tuned_candidates(
        Backend::wgmma, in_workspace, sm, tuning,
        [&](const TuningTile& tile, KernelConfig& config) {
            return make_tuned(spec, {tile, false, true}, sm, config);
        },
        rejected);
    if (chosen.empty() || chosen.back().up_to) return std::nullopt;
    chosen.back().above = kFewRows;
    return std::move(chosen.back());
}

// The kernel for many rows is faster for few as well, as was measured; of 64 rows there is one where O of two
// warpgroups has no room in registers.
std::vector<Candidate> widened_candidates(const AttentionSpec& spec, const SmTraits& sm,
                                          const TuningTable& tuning, std::vector<Refusal>& rejected) {
    std::vector<Candidate> chosen;
    if (auto ahead = candidate_ahead(spec, sm, tuning, rejected)) chosen.push_back(*std::move(ahead));
    if (const auto many = widened_kernel(spec, sm, 2 * abi::kWgmmaRows, false))
        chosen.push_back({.kernel = config_of(*many, sm)});
    else if (const auto few = widened_kernel(spec, sm, abi::kWgmmaRows, true))
        chosen.push_back({.kernel = config_of(*few, sm), .up_to = kFewRows});
    return chosen;
}

// In wide kernels two warpgroups have half of O's columns each, in whole panels of 64.
constexpr std::int64_t kWideColumns = 2 * 64;

// Latents are few rows beside their keys in prefill too. Else tiles are drawn where there are many, since
// under a causal mask equal shares would not be equal work.
std::vector<Candidate> wide_candidates(const AttentionSpec& spec, const SmTraits& sm) {
    Tile tile = tile_for_few_rows(spec);
    const KernelConfig few = config_of(planned(spec, tile, sm), sm);
    if (problem::is_latent(spec)) return {{.kernel = few}};
    tile.shares = false;
    return {{.kernel = config_of(planned(spec, tile, sm), sm)}, {.kernel = few, .up_to = kFewRows}};
}

std::optional<std::string> wide_refusal(const AttentionSpec& spec, const SmTraits& sm) {
    if (problem::is_latent(spec) && spec.head_dim_ckv % kWideColumns != 0)
        return fmt::format("head_dim_ckv {}: its tiles are made for multiples of {}", spec.head_dim_ckv,
                           kWideColumns);
    if (!problem::is_latent(spec) &&
        (spec.head_dim_qk % kWideColumns != 0 || spec.head_dim_vo % kWideColumns != 0))
        return fmt::format("head dims {} and {}: above {} its tiles are made for multiples of {}",
                           spec.head_dim_qk, spec.head_dim_vo, abi::kWgmmaNarrowHeadDim, kWideColumns);
    if (is_cut(spec)) return "consistency \"bitwise\": no room for the states of rows that are cut";
    return planned(spec, tile_for_few_rows(spec), sm).refusal();
}

std::optional<std::string> widened_refusal(const AttentionSpec& spec, const SmTraits& sm) {
    if (is_per_token(spec.kv_scale))
        return fmt::format("kv_scale is {}: it takes one scale of all tokens", to_string(spec.kv_scale));
    if (is_cut(spec) || (is_wide(spec) && !problem::is_latent(spec)))
        return fmt::format(
            "kv_dtype is {}: it widens latents, and keys with head dims up to {}, and not with consistency "
            "\"bitwise\"",
            to_string(problem::kv_dtype(spec)), abi::kWgmmaNarrowHeadDim);
    if (problem::is_latent(spec)) return wide_refusal(spec, sm);
    const Tile least_ahead{
        {.backend = Backend::wgmma, .tile_q = kQueryTiles[0], .tile_kv = 64, .stages = kStages[0]},
        false,
        true};
    if (!widened_kernel(spec, sm, abi::kWgmmaRows, true) && planned(spec, least_ahead, sm).refusal())
        return fmt::format("head dims {} and {}: no room for tiles of keys as they are stored and widened",
                           spec.head_dim_qk, spec.head_dim_vo);
    return std::nullopt;
}

}  // namespace

std::optional<std::string> refusal(const AttentionSpec& spec, const SmTraits& sm) {
    if (sm.wgmma_flops == 0) return fmt::format("needs sm_90; this is sm_{}", sm.sm);
    if (auto reason = tensor_core_refusal(spec)) return reason;
    if (spec.alignment != 16)
        return fmt::format("alignment {}: TMA takes addresses and strides of whole 16 bytes", spec.alignment);
    if (problem::is_latent(spec))
        return is_widened(spec) ? widened_refusal(spec, sm) : wide_refusal(spec, sm);
    if (std::min(spec.head_dim_qk, spec.head_dim_vo) < kLeastHeadDim)
        return fmt::format("head dims {} and {}: its tiles are made for {} and more", spec.head_dim_qk,
                           spec.head_dim_vo, kLeastHeadDim);
    if (std::max(spec.head_dim_qk, spec.head_dim_vo) > kMostHeadDim)
        return fmt::format("head dims {} and {}: its tiles are made for {} and less", spec.head_dim_qk,
                           spec.head_dim_vo, kMostHeadDim);
    if (is_widened(spec)) return widened_refusal(spec, sm);
    if (is_wide(spec)) return wide_refusal(spec, sm);
    if (is_cut(spec)) return cut_refusal(spec, sm);
    return std::nullopt;
}

std::vector<KernelConfig> tunable(const AttentionSpec& spec, const SmTraits& sm) {
    std::vector<KernelConfig> kernels;
    if (is_cut(spec) || is_wide(spec) || is_widened(spec) || refusal(spec, sm)) return kernels;
    for (const int rows : kQueryTiles) {
        for (const int keys : key_tiles(spec.kv == KvStorage::paged)) {
            for (const int stages : kStages) {
                const Planned<Kernel> one = planned(
                    spec, {{.backend = Backend::wgmma, .tile_q = rows, .tile_kv = keys, .stages = stages}},
                    sm);
                if (!one.refusal()) kernels.push_back(config_of(one, sm));
            }
        }
    }
    return kernels;
}

std::vector<Candidate> candidates(const AttentionSpec& spec, const SmTraits& sm, const TuningTable& tuning,
                                  std::vector<Refusal>& rejected) {
    if (is_wide(spec)) return wide_candidates(spec, sm);
    if (is_widened(spec)) return widened_candidates(spec, sm, tuning, rejected);
    if (is_cut(spec)) {
        return {{config_of(*kernel_for_many_cut_rows(spec, sm), sm), TileSource::model, abi::kWgmmaRows},
                *candidate_for_few_rows(spec, sm, rejected)};
    }
    const auto make = [&](const TuningTile& tile, KernelConfig& config) {
        return make_tuned(spec, {tile}, sm, config);
    };
    const std::size_t before = rejected.size();
    std::vector<Candidate> chosen = tuned_candidates(Backend::wgmma, spec, sm, tuning, make, rejected);
    if (chosen.empty() && rejected.size() == before)
        rejected.push_back({"wgmma", fmt::format("no tuning table has a tile for head dims {} and {} or more",
                                                 spec.head_dim_qk, spec.head_dim_vo)});
    if (auto few = candidate_for_few_rows(spec, sm, rejected)) chosen.push_back(*std::move(few));
    return chosen;
}

std::optional<int> most_rows_of_other_families(const AttentionSpec& spec, std::span<const Candidate> own) {
    if (is_cut(spec)) return std::nullopt;
    if (problem::is_latent(spec)) return is_widened(spec) ? kDecodeRows : 0;
    if (is_wide(spec)) return kDecodeRows;
    if (is_widened(spec)) {
        // The kernel for all sizes. There may be another for many rows, whose keys were widened before.
        const bool serves_all =
            std::ranges::any_of(own, [](const Candidate& one) { return one.above < 0 && !one.up_to; });
        return serves_all ? std::optional<int>(kDecodeRows) : std::nullopt;
    }
    const auto serves_many = [](const Candidate& one) { return !one.up_to; };
    const auto few = std::ranges::find_if(
        own, [](const Candidate& one) { return one.kernel.tile_q() == abi::kWgmmaRows; });
    if (few == own.end() || std::ranges::none_of(own, serves_many)) return std::nullopt;
    return is_narrow(few->kernel.as<Kernel>()) ? few->kernel.tile_q() : kDecodeRows;
}

}  // namespace attnsmith::families::attention_wgmma
