// Which rows, tiles and stages the family's kernels have on a compute capability.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "families/attention_cuda_core/family.hpp"
#include "families/attention_cuda_core/kernel.hpp"

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
    return fmt::format("cuda_core {}x{} stages {}", kernel.tile_q, kernel.tile_kv, kernel.stages);
}

// A kernel, and what it takes of an SM.
struct Fitted {
    Kernel kernel;
    std::int64_t shared_bytes = 0;
    int ctas_per_sm = 0;
};

// Why the kernel cannot run; nothing when it can, with its resources filled in.
std::optional<std::string> budget(Fitted& fitted, const SmTraits& sm) {
    const Kernel& kernel = fitted.kernel;
    fitted.shared_bytes = abi::cuda_core_layout(kernel.shape()).total;
    if (fitted.shared_bytes > sm.shared_bytes_per_block) {
        return fmt::format("needs {} bytes of shared memory; a block of sm_{} has {}", fitted.shared_bytes,
                           sm.sm, sm.shared_bytes_per_block);
    }
    fitted.ctas_per_sm = resident_ctas(sm, kernel.threads(), registers_of(kernel), fitted.shared_bytes);
    if (fitted.ctas_per_sm == 0) return fmt::format("no CTA fits an SM of sm_{}", sm.sm);
    return std::nullopt;
}

// Those of one tile that fit.
std::vector<Fitted> fitting(const AttentionSpec& spec, const SmTraits& sm, const Tile& tile,
                            std::vector<Refusal>& rejected) {
    std::vector<Fitted> kernels;
    for (const Ring& ring : kRings) {
        Fitted fitted{{attention_constants(spec), tile.rows, tile.warps_q, tile.warps_kv, spec.alignment}};
        fitted.kernel.tile_q = tile.rows * tile.warps_q;
        fitted.kernel.tile_kv = ring.tile_kv;
        fitted.kernel.stages = ring.stages;
        fitted.kernel.queries_in_registers = true;
        if (const auto reason = budget(fitted, sm)) {
            rejected.push_back({label(fitted.kernel), *reason});
        } else {
            kernels.push_back(fitted);
        }
    }
    return kernels;
}

KernelConfig config_of(const Fitted& fitted, const SmTraits& sm) {
    return {.family = &kFamily,
            .sm = sm.sm,
            .target = fmt::format("sm_{}", sm.sm),
            .constants = Constants::of(fitted.kernel),
            .threads = fitted.kernel.threads(),
            .ctas_per_sm = fitted.ctas_per_sm,
            .shared_bytes = fitted.shared_bytes};
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
        std::vector<Fitted> kernels = fitting(spec, sm, tile, rejected);
        if (kernels.empty()) continue;
        const auto ctas = [](const Fitted& one) { return std::min(one.ctas_per_sm, kWantedCtas); };
        const Fitted& best = *std::ranges::max_element(kernels, {}, ctas);  // the first of equals
        for (const Fitted& other : kernels) {
            if (other.kernel.tile_kv == best.kernel.tile_kv && other.kernel.stages == best.kernel.stages)
                continue;
            rejected.push_back(
                {label(other.kernel), fmt::format("{} CTAs of it fit an SM; of {}, which is preferred, {}",
                                                  other.ctas_per_sm, label(best.kernel), best.ctas_per_sm)});
        }
        chosen.push_back({config_of(best, sm)});
    }
    return chosen;
}

}  // namespace attnsmith::families::attention_cuda_core
