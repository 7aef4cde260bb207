#include "planner/attention_mma.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "abi/attention_shared.h"
#include "planner/attention_base.hpp"
#include "planner/cost.hpp"

namespace attnsmith::planner {
namespace {

struct Tile {
    int tile_q, warps_q, warps_kv;
};
// 16 rows a warp. With at most 16 rows in all, the warps divide the keys instead.
constexpr Tile kTiles[] = {{16, 1, 4}, {64, 4, 1}, {128, 8, 1}};
constexpr int kKeyTiles[] = {32, 64, 128};
constexpr int kMostStages = 3;
constexpr int kMostRegisters = 255;

// Work that configs of one query tile are ranked by: long enough that the steady state counts.
constexpr std::int64_t kRankingKeys = 8192;
constexpr std::int64_t kRankingQueries = 4096;

std::string label(const KernelConfig& kernel) {
    return fmt::format("mma {}x{} stages {}", kernel.tile_q, kernel.tile_kv, kernel.stages);
}

abi::AttentionShape shape_of(const KernelConfig& kernel) {
    return {kernel.head_dim_qk, kernel.head_dim_vo, kernel.tile_q,   kernel.tile_kv,
            kernel.stages,      kernel.warps_q,     kernel.warps_kv, kernel.paged};
}

KernelConfig base_config(const AttentionSpec& spec, const DeviceTraits& device, const Tile& tile) {
    KernelConfig kernel = attention_base(spec, device);
    kernel.family = Family::attention_mma;
    kernel.backend = Backend::mma;
    kernel.target = fmt::format("sm_{}", device.sm);
    kernel.tile_q = tile.tile_q;
    kernel.warps_q = tile.warps_q;
    kernel.warps_kv = tile.warps_kv;
    return kernel;
}

// CTAs of the kernel that an SM holds, by everything that is scarce.
int occupancy(const KernelConfig& kernel, const DeviceTraits& device) {
    const int registers = (attention_mma_registers(kernel) + 7) / 8 * 8;
    const std::int64_t by_shared = device.shared_bytes_per_sm / (kernel.shared_bytes + kReservedSharedBytes);
    const std::int64_t by_registers = device.registers_per_sm / (registers * kernel.threads());
    const std::int64_t by_threads = device.threads_per_sm / kernel.threads();
    return static_cast<int>(
        std::min({by_shared, by_registers, by_threads, std::int64_t{device.ctas_per_sm}}));
}

// Why the kernel cannot run; nothing when it can, with its resources filled in.
std::optional<std::string> budget(KernelConfig& kernel, const DeviceTraits& device) {
    if (kernel.tile_kv % (16 * kernel.warps_kv) != 0) {
        return fmt::format("{} keys do not divide over {} warps by 16", kernel.tile_kv, kernel.warps_kv);
    }
    if (kernel.tile_kv > kernel.threads()) {
        return fmt::format("{} keys need as many threads to look them up; the CTA has {}", kernel.tile_kv,
                           kernel.threads());
    }
    kernel.shared_bytes = abi::attention_shared(shape_of(kernel)).total;
    if (kernel.shared_bytes > device.shared_bytes_per_block) {
        return fmt::format("needs {} bytes of shared memory; a block of sm_{} has {}", kernel.shared_bytes,
                           device.sm, device.shared_bytes_per_block);
    }
    kernel.queries_in_registers = true;
    if (kernel.head_dim_qk > 128 || attention_mma_registers(kernel) > kMostRegisters)
        kernel.queries_in_registers = false;
    if (const int registers = attention_mma_registers(kernel); registers > kMostRegisters) {
        return fmt::format("needs about {} registers a thread; there are {}", registers, kMostRegisters);
    }
    kernel.ctas_per_sm = occupancy(kernel, device);
    if (kernel.ctas_per_sm == 0) return fmt::format("no CTA fits an SM of sm_{}", device.sm);
    return std::nullopt;
}

double rank(const KernelConfig& kernel, const DeviceTraits& device) {
    const Work work{.sequences_and_heads = std::int64_t{device.sm_count} * kernel.ctas_per_sm,
                    .of_each = {.q_len = kernel.tile_q == 16 ? 16 : kRankingQueries, .keys = kRankingKeys}};
    return estimated_clocks(kernel, device, work, 1) / static_cast<double>(kernel.ctas_per_sm);
}

}  // namespace

int attention_mma_registers(const KernelConfig& kernel) {
    // Fitted to NVRTC 13.0 over all head dims and SMs: what is accepted does not spill (tests/cpu/compiler).
    constexpr int kAddressesAndState = 75;
    constexpr int kQueryFragment = 20;
    const int output = abi::padded_head_dim(kernel.head_dim_vo) / 2;
    const int logits = kernel.tile_kv / kernel.warps_kv / 2;  // and as many again while P is made of them
    const int queries =
        kernel.queries_in_registers ? abi::padded_head_dim(kernel.head_dim_qk) / 4 : kQueryFragment;
    return output + 2 * logits + queries + kAddressesAndState;
}

std::vector<KernelConfig> attention_mma_kernels(const AttentionSpec& spec, const DeviceTraits& device,
                                                std::vector<Refusal>& rejected) {
    std::vector<KernelConfig> chosen;
    if (const auto reason = tensor_core_refusal(spec)) {
        rejected.push_back({"mma", *reason});
        return chosen;
    }
    for (const Tile& tile : kTiles) {
        std::vector<KernelConfig> fitting;
        for (int keys : kKeyTiles) {
            for (int stages = 1; stages <= kMostStages; ++stages) {
                KernelConfig kernel = base_config(spec, device, tile);
                kernel.tile_kv = keys;
                kernel.stages = stages;
                if (const auto reason = budget(kernel, device)) {
                    rejected.push_back({label(kernel), *reason});
                } else {
                    fitting.push_back(kernel);
                }
            }
        }
        if (fitting.empty()) continue;
        std::stable_sort(fitting.begin(), fitting.end(),
                         [&](const auto& a, const auto& b) { return rank(a, device) < rank(b, device); });
        for (std::size_t i = 1; i < fitting.size(); ++i) {
            rejected.push_back(
                {label(fitting[i]),
                 fmt::format("estimated {:.2f}x the time of {} in the steady state",
                             rank(fitting[i], device) / rank(fitting[0], device), label(fitting[0]))});
        }
        chosen.push_back(fitting[0]);
    }
    return chosen;
}

}  // namespace attnsmith::planner
