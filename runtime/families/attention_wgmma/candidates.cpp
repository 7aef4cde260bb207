// Which tiles and stages the family's kernels have on a compute capability.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

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

struct Tile : TuningTile {
    bool shares = false;         // CTAs take equal shares of the keys; else they draw tiles
    bool widened_ahead = false;  // Kernel::widened_ahead
};

// With cuts a tile's last row is looked at beside its first, for which 32 were too few.
int producer_registers(const Kernel& kernel) {
    if (abi::wgmma_widens_in_place(kernel.shape())) return 72;
    if (kernel.shares || kernel.is_wide()) return 56;
    return kernel.consumers == 2 || kernel.absolute_cuts ? 40 : 32;
}

int score_registers(const Kernel& kernel) { return kernel.is_wide() ? 104 : 0; }

// What there is for a thread that multiplies, where an SM holds so many CTAs.
int consumer_registers(const Kernel& kernel, int ctas) {
    constexpr int kWarpgroup = 128;  // threads
    const int launched = registers_ceiling(kernel.threads(), ctas) * (kernel.threads() / kWarpgroup);
    const int left = launched - producer_registers(kernel) - score_registers(kernel) -
                     abi::wgmma_widener_registers(kernel.shape());
    return std::min(240, left / (kernel.consumers - (kernel.is_wide() ? 1 : 0)) / 8 * 8);
}

// CTAs that an SM holds: of those that draw tiles one, which is persistent.
int ctas_of(const Kernel& kernel, const SmTraits& sm) {
    constexpr int kWanted = 2;  // one computes while the other waits
    if (!kernel.shares || registers_of(kernel) > consumer_registers(kernel, kWanted)) return 1;
    const std::int64_t bytes = abi::wgmma_layout(kernel.shape()).total;
    return std::clamp(
        resident_ctas(sm, kernel.threads(), registers_ceiling(kernel.threads(), kWanted), bytes), 1, kWanted);
}

Kernel kernel_of(const AttentionSpec& spec, const Tile& tile, const SmTraits& sm) {
    Kernel kernel{attention_constants(spec)};
    kernel.tile_q = tile.tile_q;
    kernel.tile_kv = tile.tile_kv;
    kernel.stages = tile.stages;
    kernel.gather = gathers(spec) && !tile.widened_ahead;
    kernel.widened_ahead = tile.widened_ahead;
    if (tile.widened_ahead) kernel.key_value = kWidenedTo;
    kernel.consumers = abi::wgmma_consumers(kernel.shape());
    kernel.shares = tile.shares;
    kernel.producer_registers = producer_registers(kernel);
    kernel.score_registers = score_registers(kernel);
    kernel.consumer_registers = consumer_registers(kernel, ctas_of(kernel, sm));
    kernel.queries_in_registers = !kernel.is_wide();
    if (registers_of(kernel) > kernel.consumer_registers) kernel.queries_in_registers = false;
    return kernel;
}

// Why the kernel cannot run.
std::optional<std::string> over_budget(const Kernel& kernel, const SmTraits& sm) {
    if (auto reason = shared_memory_refusal(abi::wgmma_layout(kernel.shape()).total, sm)) return reason;
    const int registers = registers_of(kernel);
    if (registers > kernel.consumer_registers)
        return fmt::format("needs about {} registers a thread; {} consumer warpgroups have {}", registers,
                           kernel.consumers, kernel.consumer_registers);
    // ptxas 13.0 takes no product of more registers than a thread is launched with.
    constexpr int kBesideSums = 30;
    const int launched = registers_ceiling(kernel.threads(), ctas_of(kernel, sm));
    const int product = std::max(abi::padded_head_dim(kernel.head_dim_vo), kernel.tile_kv) / 2 + kBesideSums;
    if (!kernel.is_wide() && product > launched)
        return fmt::format("a product needs {} registers a thread, which is launched with {}", product,
                           launched);
    return std::nullopt;
}

// wgmma is of its architecture alone.
KernelConfig config_of(const Kernel& kernel, const SmTraits& sm) {
    const Fitted<Kernel> fitted{kernel, abi::wgmma_layout(kernel.shape()).total, ctas_of(kernel, sm)};
    return families::config_of(family(), fitted, sm, "a");
}

bool is_widened(const AttentionSpec& spec) { return is_fp8(problem::kv_dtype(spec)); }

bool is_cut(const AttentionSpec& spec) { return spec.consistency == Consistency::bitwise; }

bool is_wide(const AttentionSpec& spec) {
    return spec.op == Op::mla || std::max(spec.head_dim_qk, spec.head_dim_vo) > abi::kWgmmaNarrowHeadDim;
}

// Of 64 rows, whose CTAs take shares. Decode is bound by memory, so that short tiles do, of which there are
// more to divide. Where rows are cut a tile's keys are a softmax step, the same in every kernel. In wide
// kernels the weights of 64 keys take a panel's row, and of K and V there is room for one tile each, of
// latents, which are both, for two.
Tile tile_for_few_rows(const AttentionSpec& spec) {
    Tile tile{{.backend = Backend::wgmma, .tile_q = abi::kWgmmaRows, .tile_kv = 64, .stages = 2}, true};
    if (is_wide(spec))
        tile.stages = spec.op == Op::mla ? 2 : 1;
    else if (std::max(spec.head_dim_qk, spec.head_dim_vo) <= 64 && !is_cut(spec))
        tile.tile_kv = 128;
    return tile;
}

std::optional<Candidate> candidate_for_few_rows(const AttentionSpec& spec, const SmTraits& sm,
                                                std::vector<Refusal>& rejected) {
    const Tile tile = tile_for_few_rows(spec);
    const Kernel kernel = kernel_of(spec, tile, sm);
    if (const auto reason = over_budget(kernel, sm)) {
        rejected.push_back({tile_label(Backend::wgmma, tile.tile_q, tile.tile_kv, tile.stages), *reason});
        return std::nullopt;
    }
    // Where rows are cut others do not divide keys, so that for more rows it may be the best as well.
    Candidate candidate{.kernel = config_of(kernel, sm)};
    if (!is_cut(spec)) candidate.up_to = kFewRows;
    return candidate;
}

// Where rows are cut at absolute positions, for many of them: the largest tile that there is room for.
std::optional<Kernel> kernel_for_many_cut_rows(const AttentionSpec& spec, const SmTraits& sm) {
    Tile tile = tile_for_few_rows(spec);
    tile.shares = false;
    for (auto rows = std::rbegin(kQueryTiles); rows != std::rend(kQueryTiles); ++rows) {
        tile.tile_q = *rows;
        const Kernel kernel = kernel_of(spec, tile, sm);
        if (!over_budget(kernel, sm)) return kernel;
    }
    return std::nullopt;
}

std::optional<std::string> cut_refusal(const AttentionSpec& spec, const SmTraits& sm) {
    if (auto reason = over_budget(kernel_of(spec, tile_for_few_rows(spec), sm), sm)) return reason;
    if (!kernel_for_many_cut_rows(spec, sm))
        return fmt::format("head dims {} and {}: no room for the states of rows that are cut",
                           spec.head_dim_qk, spec.head_dim_vo);
    return std::nullopt;
}

// The kernel of a table's tile, or why there is none.
std::optional<std::string> make_tuned(const AttentionSpec& spec, const Tile& tile, const SmTraits& sm,
                                      KernelConfig& config) {
    if (auto reason = unknown_tile(tile, spec.kv == KvStorage::paged && !tile.widened_ahead)) return reason;
    const Kernel kernel = kernel_of(spec, tile, sm);
    if (auto reason = over_budget(kernel, sm)) return reason;
    config = config_of(kernel, sm);
    return std::nullopt;
}

// One CTA an SM that widens has all registers, and so tiles are as large as there is room for beside two as
// they are stored; else beside one.
std::optional<Kernel> widened_kernel(const AttentionSpec& spec, const SmTraits& sm, int rows, bool shares) {
    for (const int stages : {2, 1}) {
        for (const int keys : {160, 128, 96, 64}) {
            const Kernel kernel = kernel_of(
                spec,
                Tile{{.backend = Backend::wgmma, .tile_q = rows, .tile_kv = keys, .stages = stages}, shares},
                sm);
            if (!over_budget(kernel, sm)) return kernel;
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
        chosen.push_back({.kernel = config_of(*many, sm), .rows_of_others = kDecodeRows});
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
    const KernelConfig few = config_of(kernel_of(spec, tile, sm), sm);
    if (spec.op == Op::mla) return {{.kernel = few, .rows_of_others = is_widened(spec) ? kDecodeRows : 0}};
    tile.shares = false;
    return {{.kernel = config_of(kernel_of(spec, tile, sm), sm)},
            {.kernel = few, .up_to = kFewRows, .rows_of_others = kDecodeRows}};
}

std::optional<std::string> wide_refusal(const AttentionSpec& spec, const SmTraits& sm) {
    if (spec.op == Op::mla && spec.head_dim_ckv % kWideColumns != 0)
        return fmt::format("head_dim_ckv {}: its tiles are made for multiples of {}", spec.head_dim_ckv,
                           kWideColumns);
    if (spec.op != Op::mla && (spec.head_dim_qk % kWideColumns != 0 || spec.head_dim_vo % kWideColumns != 0))
        return fmt::format("head dims {} and {}: above {} its tiles are made for multiples of {}",
                           spec.head_dim_qk, spec.head_dim_vo, abi::kWgmmaNarrowHeadDim, kWideColumns);
    if (is_cut(spec)) return "consistency \"bitwise\": no room for the states of rows that are cut";
    return over_budget(kernel_of(spec, tile_for_few_rows(spec), sm), sm);
}

std::optional<std::string> widened_refusal(const AttentionSpec& spec, const SmTraits& sm) {
    if (is_of_tokens(spec.kv_scale))
        return fmt::format("kv_scale is {}: it takes one scale of all tokens", to_string(spec.kv_scale));
    if (is_cut(spec) || (is_wide(spec) && spec.op != Op::mla))
        return fmt::format(
            "kv_dtype is {}: it widens latents, and keys with head dims up to {}, and not with consistency "
            "\"bitwise\"",
            to_string(problem::kv_dtype(spec)), abi::kWgmmaNarrowHeadDim);
    if (spec.op == Op::mla) return wide_refusal(spec, sm);
    const Tile least_ahead{
        {.backend = Backend::wgmma, .tile_q = kQueryTiles[0], .tile_kv = 64, .stages = kStages[0]},
        false,
        true};
    if (!widened_kernel(spec, sm, abi::kWgmmaRows, true) && over_budget(kernel_of(spec, least_ahead, sm), sm))
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
    if (spec.op == Op::mla) return is_widened(spec) ? widened_refusal(spec, sm) : wide_refusal(spec, sm);
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
                const Kernel kernel = kernel_of(
                    spec, {{.backend = Backend::wgmma, .tile_q = rows, .tile_kv = keys, .stages = stages}},
                    sm);
                if (!over_budget(kernel, sm)) kernels.push_back(config_of(kernel, sm));
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
    const bool serves_many = !chosen.empty() && !chosen.back().up_to;
    if (auto few = candidate_for_few_rows(spec, sm, rejected)) {
        if (serves_many)
            few->rows_of_others = is_narrow(few->kernel.as<Kernel>()) ? few->kernel.tile_q() : kDecodeRows;
        chosen.push_back(*std::move(few));
    }
    return chosen;
}

}  // namespace attnsmith::families::attention_wgmma
