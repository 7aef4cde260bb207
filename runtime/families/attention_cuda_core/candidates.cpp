// Which rows, tiles and stages the family's kernels have on a compute capability.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "families/attention_cuda_core/family.hpp"
#include "families/attention_cuda_core/kernel.hpp"
#include "families/fitting.hpp"

namespace attnsmith::families::attention_cuda_core {
namespace {

struct Tile {
    int rows, warps_q, warps_kv;
};
// With few rows in all the warps divide the keys. Of many, eight warps have eight rows each.
constexpr Tile kTiles[] = {{1, 1, 4}, {4, 1, 4}, {8, 1, 4}, {8, 8, 1}};
// Keys of a tile and tiles in shared memory, the fastest first as measured on an H200 (NOTES.md), where an SM
// holds as many CTAs.
struct Ring {
    int tile_kv, stages;
};
constexpr Ring kRings[] = {{64, 3}, {64, 2}, {32, 3}, {32, 2}};
constexpr int kWantedCtas = 2;  // of an SM: one computes while the other waits
constexpr int kMostRegisters = 255;

std::string label(const Kernel& kernel) {
    return tile_label(Backend::cuda_core, kernel.tile_q, kernel.tile_kv, kernel.stages);
}

// Those of one tile that fit.
std::vector<Planned<Kernel>> fitting(const AttentionSpec& spec, const SmTraits& sm, const Tile& tile,
                                     std::vector<Refusal>& rejected) {
    std::vector<Planned<Kernel>> kernels;
    for (const Ring& ring : kRings) {
        Kernel kernel{{attention_constants(spec), tile.warps_q, tile.warps_kv, 0, spec.alignment}, tile.rows};
        kernel.tile_q = tile.rows * tile.warps_q;
        kernel.tile_kv = ring.tile_kv;
        kernel.stages = ring.stages;
        kernel.queries_in_registers = true;
        Budget budget = Budget::of(kernel.threads(), registers_of(kernel),
                                   abi::cuda_core_layout(kernel.shape()).total, sm);
        if (budget.refusal)
            rejected.push_back({label(kernel), *budget.refusal});
        else
            kernels.push_back({kernel, std::move(budget)});
    }
    return kernels;
}

}  // namespace

int registers_of(const Kernel& kernel) {
    // Eight columns of Q and of O a row, in fp32; four chunks under way, and a row's sums.
    constexpr int kAddressesAndState = 80;
    return std::min(kMostRegisters, 2 * 8 * kernel.rows + 2 * kernel.rows + kAddressesAndState);
}

std::vector<Candidate> candidates(const AttentionSpec& spec, const SmTraits& sm,
                                  std::vector<Refusal>& rejected) {
    std::vector<Candidate> chosen;
    for (const Tile& tile : kTiles) {
        std::vector<Planned<Kernel>> kernels = fitting(spec, sm, tile, rejected);
        if (kernels.empty()) continue;
        const auto ctas = [](const Planned<Kernel>& one) {
            return std::min(one.budget.ctas_per_sm, kWantedCtas);
        };
        const Planned<Kernel>& best = *std::ranges::max_element(kernels, {}, ctas);  // the first of equals
        for (const Planned<Kernel>& other : kernels) {
            if (other.kernel.tile_kv == best.kernel.tile_kv && other.kernel.stages == best.kernel.stages)
                continue;
            rejected.push_back(
                {label(other.kernel),
                 fmt::format("an SM holds {} of its CTAs at once, and {} of {}, which is preferred",
                             other.budget.ctas_per_sm, best.budget.ctas_per_sm, label(best.kernel))});
        }
        chosen.push_back({config_of(family(), best, sm)});
    }
    return chosen;
}

}  // namespace attnsmith::families::attention_cuda_core
