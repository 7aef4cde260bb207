#include "planner/attention_wgmma.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "abi/attention_wgmma.h"
#include "planner/attention_base.hpp"

namespace attnsmith::planner {
namespace {

struct Tile {
    int tile_q, tile_kv;
};

constexpr int kWarpgroupRows = 64;  // of one wgmma
constexpr int kProducerWarps = 4;   // registers are given to whole warpgroups
constexpr int kQueryTiles[] = {128, 192};
constexpr int kMostRows = 192;
constexpr int kStages[] = {2, 3};
constexpr int kDefaultStages = 2;
constexpr std::int64_t kLeastHeadDim = 64;
// The 128-byte swizzle repeats every 8 rows: a box of whole repeats lies in a tile like any other.
constexpr int kBoxStep = 8;

// wgmma's steps are 16 keys. Of paged KV those that have large common divisors with pages.
std::vector<int> key_tiles(bool paged) {
    if (paged) return {64, 96, 128, 160, 192};
    std::vector<int> tiles;
    for (int keys = 48; keys <= 256; keys += 16) tiles.push_back(keys);
    return tiles;
}

// The best tiles, the first that fits. Of the spec only what a model's layers share or differ in anyway:
// without a mask no tile is cut at the diagonal, and longer ones pay.
std::vector<Tile> preferred_tiles(const AttentionSpec& spec) {
    const std::int64_t widest = std::max(spec.head_dim_qk, spec.head_dim_vo);
    const bool paged = spec.kv == KvStorage::paged;
    const bool sees_all = spec.mask == Mask::full && !spec.window_left && !spec.window_right;
    if (widest <= 96) return {{192, 128}, {128, 128}};
    if (widest <= 128) return {{128, sees_all && !paged ? 176 : 128}};
    if (widest <= 192) return {{128, spec.head_dim_vo <= 128 ? 128 : paged ? 96 : 112}};
    return {{128, paged ? 64 : 80}};
}

// Why no kernel of the family serves the spec on the SM.
std::optional<std::string> refusal(const AttentionSpec& spec, const DeviceTraits& device) {
    if (device.wgmma_flops == 0) return fmt::format("needs sm_90; this is sm_{}", device.sm);
    if (const auto reason = tensor_core_refusal(spec)) return reason;
    if (spec.alignment != 16)
        return fmt::format("alignment {}: TMA takes addresses and strides of whole 16 bytes", spec.alignment);
    if (std::min(spec.head_dim_qk, spec.head_dim_vo) < kLeastHeadDim)
        return fmt::format("head dims {} and {}: its tiles are made for {} and more", spec.head_dim_qk,
                           spec.head_dim_vo, kLeastHeadDim);
    if (spec.kv == KvStorage::paged && spec.page_size % kBoxStep != 0)
        return fmt::format("pages of {} keys: a TMA box holds a multiple of {}", spec.page_size, kBoxStep);
    if (const std::int64_t group = spec.q_heads / spec.kv_heads; group > kMostRows)
        return fmt::format("{} query heads to each KV head: a tile holds whole tokens in at most {} rows",
                           group, kMostRows);
    return std::nullopt;
}

KernelConfig config_of(const AttentionSpec& spec, const DeviceTraits& device, const Tile& tile, int stages) {
    KernelConfig kernel = attention_base(spec, device);
    kernel.family = Family::attention_wgmma;
    kernel.backend = Backend::wgmma;
    kernel.target = fmt::format("sm_{}a", device.sm);  // wgmma is of this architecture alone
    kernel.tile_q = tile.tile_q;
    kernel.tile_kv = tile.tile_kv;
    kernel.stages = stages;
    kernel.warps_q = tile.tile_q / 16;
    kernel.warps_kv = 1;
    kernel.producer_warps = kProducerWarps;
    kernel.ctas_per_sm = 1;
    kernel.shared_bytes = abi::wgmma_shared({.head_dim_qk = kernel.head_dim_qk,
                                             .head_dim_vo = kernel.head_dim_vo,
                                             .tile_q = kernel.tile_q,
                                             .tile_kv = kernel.tile_kv,
                                             .stages = kernel.stages})
                              .total;
    return kernel;
}

// Why the kernel cannot run.
std::optional<std::string> over_budget(const KernelConfig& kernel, const AttentionSpec& spec,
                                       const DeviceTraits& device) {
    if (const std::int64_t group = spec.q_heads / spec.kv_heads; group > kernel.tile_q)
        return fmt::format("{} query heads to each KV head: a tile holds whole tokens in {} rows", group,
                           kernel.tile_q);
    if (kernel.shared_bytes > device.shared_bytes_per_block)
        return fmt::format("needs {} bytes of shared memory; a block of sm_{} has {}", kernel.shared_bytes,
                           device.sm, device.shared_bytes_per_block);
    const int registers = attention_wgmma_registers(kernel);
    if (const int limit = warpgroup_registers(kernel).consumer; registers > limit)
        return fmt::format("needs about {} registers a thread; {} consumer warpgroups have {}", registers,
                           kernel.tile_q / kWarpgroupRows, limit);
    return std::nullopt;
}

}  // namespace

std::vector<KernelConfig> attention_wgmma_candidates(const AttentionSpec& spec, const DeviceTraits& device) {
    std::vector<KernelConfig> candidates;
    if (refusal(spec, device)) return candidates;
    for (const int rows : kQueryTiles) {
        for (const int keys : key_tiles(spec.kv == KvStorage::paged)) {
            for (const int stages : kStages) {
                const KernelConfig kernel = config_of(spec, device, {rows, keys}, stages);
                if (!over_budget(kernel, spec, device)) candidates.push_back(kernel);
            }
        }
    }
    return candidates;
}

std::vector<KernelConfig> attention_wgmma_kernels(const AttentionSpec& spec, const DeviceTraits& device,
                                                  std::vector<Refusal>& rejected) {
    if (const auto reason = refusal(spec, device)) {
        rejected.push_back({"wgmma", *reason});
        return {};
    }
    for (const Tile& tile : preferred_tiles(spec)) {
        const KernelConfig kernel = config_of(spec, device, tile, kDefaultStages);
        const auto reason = over_budget(kernel, spec, device);
        if (!reason) return {kernel};
        rejected.push_back(
            {fmt::format("wgmma {}x{} stages {}", tile.tile_q, tile.tile_kv, kDefaultStages), *reason});
    }
    return {};
}

int wgmma_box_keys(const KernelConfig& kernel, std::int64_t page_size) {
    return kernel.paged ? static_cast<int>(std::gcd(page_size, std::int64_t{kernel.tile_kv}))
                        : kernel.tile_kv;
}

int attention_wgmma_registers(const KernelConfig& kernel) {
    constexpr int kAddressesAndState = 32;
    const int output = abi::padded_head_dim(kernel.head_dim_vo) / 2;
    const int logits = kernel.tile_kv / 2;
    const int probabilities = kernel.tile_kv / 4;  // 16 bits each
    return output + logits + probabilities + kAddressesAndState;
}

WarpgroupRegisters warpgroup_registers(const KernelConfig& kernel) {
    const int consumers = kernel.tile_q / kWarpgroupRows;
    const int launched = kernel.registers_ceiling() * (consumers + 1);
    const int producer = consumers == 2 ? 40 : 32;
    return {producer, std::min(240, (launched - producer) / consumers / 8 * 8)};
}

}  // namespace attnsmith::planner
