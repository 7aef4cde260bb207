#include "planner/attention_wgmma.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "planner/attention_base.hpp"

namespace attnsmith::planner {
namespace {

constexpr int kProducerWarps = 4;  // registers are given to whole warpgroups
constexpr int kQueryTiles[] = {128, 192};
constexpr int kStages[] = {2, 3};
constexpr std::int64_t kLeastHeadDim = 64;

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

KernelConfig config_of(const AttentionSpec& spec, const DeviceTraits& device, const TuningTile& tile) {
    KernelConfig kernel = attention_base(spec, device);
    kernel.family = Family::attention_wgmma;
    kernel.backend = Backend::wgmma;
    kernel.target = fmt::format("sm_{}a", device.sm);  // wgmma is of this architecture alone
    kernel.tile_q = tile.tile_q;
    kernel.tile_kv = tile.tile_kv;
    kernel.stages = tile.stages;
    kernel.gather = gathers(spec);
    kernel.warps_q = tile.tile_q / 16;
    kernel.warps_kv = 1;
    kernel.producer_warps = kProducerWarps;
    kernel.ctas_per_sm = 1;
    kernel.shared_bytes = abi::wgmma_shared(wgmma_shape(kernel)).total;
    kernel.queries_in_registers = true;
    if (attention_wgmma_registers(kernel) > warpgroup_registers(kernel).consumer)
        kernel.queries_in_registers = false;
    return kernel;
}

// Why the kernel cannot run.
std::optional<std::string> over_budget(const KernelConfig& kernel, const DeviceTraits& device) {
    if (kernel.shared_bytes > device.shared_bytes_per_block)
        return fmt::format("needs {} bytes of shared memory; a block of sm_{} has {}", kernel.shared_bytes,
                           device.sm, device.shared_bytes_per_block);
    const int registers = attention_wgmma_registers(kernel);
    if (const int limit = warpgroup_registers(kernel).consumer; registers > limit)
        return fmt::format("needs about {} registers a thread; {} consumer warpgroups have {}", registers,
                           kernel.tile_q / abi::kWgmmaRows, limit);
    return std::nullopt;
}

}  // namespace

std::optional<std::string> attention_wgmma_refusal(const AttentionSpec& spec, const DeviceTraits& device) {
    if (device.wgmma_flops == 0) return fmt::format("needs sm_90; this is sm_{}", device.sm);
    if (const auto reason = tensor_core_refusal(spec)) return reason;
    if (spec.alignment != 16)
        return fmt::format("alignment {}: TMA takes addresses and strides of whole 16 bytes", spec.alignment);
    if (std::min(spec.head_dim_qk, spec.head_dim_vo) < kLeastHeadDim)
        return fmt::format("head dims {} and {}: its tiles are made for {} and more", spec.head_dim_qk,
                           spec.head_dim_vo, kLeastHeadDim);
    return std::nullopt;
}

std::vector<KernelConfig> attention_wgmma_candidates(const AttentionSpec& spec, const DeviceTraits& device) {
    std::vector<KernelConfig> candidates;
    if (attention_wgmma_refusal(spec, device)) return candidates;
    for (const int rows : kQueryTiles) {
        for (const int keys : key_tiles(spec.kv == KvStorage::paged)) {
            for (const int stages : kStages) {
                const KernelConfig kernel =
                    config_of(spec, device, {.tile_q = rows, .tile_kv = keys, .stages = stages});
                if (!over_budget(kernel, device)) candidates.push_back(kernel);
            }
        }
    }
    return candidates;
}

std::vector<TunedKernel> attention_wgmma_kernels(const AttentionSpec& spec, const DeviceTraits& device,
                                                 const TuningTable& tuning, std::vector<Refusal>& rejected) {
    std::vector<TunedKernel> kernels;
    if (const auto reason = attention_wgmma_refusal(spec, device)) {
        rejected.push_back({"wgmma", *reason});
        return kernels;
    }
    std::vector<TuningTile> passed_over;  // larger head dims repeat the tiles of smaller ones
    for (const TuningEntry& entry : tuning.entries_for(match_of(spec, device.sm))) {
        const std::optional<int> max_rows = entry.match.max_rows;
        // All its rows are those of a better entry.
        if (!kernels.empty() && max_rows && *max_rows <= *kernels.back().max_rows) continue;
        const TuningTile& tile = entry.tile;
        if (std::find(passed_over.begin(), passed_over.end(), tile) != passed_over.end()) continue;
        auto reason = unknown_tile(tile, spec.kv == KvStorage::paged);
        if (!reason) {
            const KernelConfig kernel = config_of(spec, device, tile);
            reason = over_budget(kernel, device);
            if (!reason) {
                kernels.push_back({kernel, entry.source, max_rows});
                if (!max_rows) break;
                continue;
            }
        }
        passed_over.push_back(tile);
        rejected.push_back({fmt::format("wgmma {}x{} stages {}", tile.tile_q, tile.tile_kv, tile.stages),
                            fmt::format("of the {} entry for head dims {} and {}: {}",
                                        entry.source == TileSource::user ? "user's" : "table's",
                                        entry.match.head_dim_qk, entry.match.head_dim_vo, *reason)});
    }
    if (kernels.empty() && passed_over.empty())
        rejected.push_back({"wgmma", fmt::format("no tuning table has a tile for head dims {} and {} or more",
                                                 spec.head_dim_qk, spec.head_dim_vo)});
    return kernels;
}

abi::WgmmaShape wgmma_shape(const KernelConfig& kernel) {
    return {.head_dim_qk = kernel.head_dim_qk,
            .head_dim_vo = kernel.head_dim_vo,
            .tile_q = kernel.tile_q,
            .tile_kv = kernel.tile_kv,
            .stages = kernel.stages,
            .gather = kernel.gather};
}

int wgmma_box_keys(const KernelConfig& kernel, std::int64_t page_size) {
    return kernel.paged ? static_cast<int>(std::gcd(page_size, std::int64_t{kernel.tile_kv}))
                        : kernel.tile_kv;
}

int attention_wgmma_registers(const KernelConfig& kernel) {
    // Fitted to NVRTC 13.0, 12.8 and 12.4: what is accepted does not spill (tests/cpu/compiler).
    constexpr int kAddressesAndState = 28;
    const int scores = kernel.softcap && kernel.alibi   ? kernel.tile_kv / 8
                       : kernel.softcap || kernel.alibi ? kernel.tile_kv / 32
                                                        : 0;
    const int output = abi::padded_head_dim(kernel.head_dim_vo) / 2;
    const int logits = kernel.tile_kv / 2;
    const int probabilities = kernel.tile_kv / 4;  // 16 bits each
    const int queries = kernel.queries_in_registers ? abi::padded_head_dim(kernel.head_dim_qk) / 4 : 0;
    return output + logits + probabilities + queries + scores + kAddressesAndState;
}

WarpgroupRegisters warpgroup_registers(const KernelConfig& kernel) {
    const int consumers = kernel.tile_q / abi::kWgmmaRows;
    const int launched = kernel.registers_ceiling() * (consumers + 1);
    const int producer = consumers == 2 ? 40 : 32;
    return {producer, std::min(240, (launched - producer) / consumers / 8 * 8)};
}

}  // namespace attnsmith::planner
