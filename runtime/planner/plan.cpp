#include "planner/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "abi/attention_arguments.h"
#include "planner/attention_mma.hpp"
#include "planner/attention_wgmma.hpp"
#include "planner/ceil_div.hpp"
#include "planner/cost.hpp"
#include "planner/merge_states.hpp"

namespace attnsmith::planner {
namespace {

constexpr int kMergeRows = 4;  // packed rows of a merge CTA, one a warp
constexpr std::int64_t kMostSplits = 256;
// A chunk shorter than this spends more on its start and its merge than on its keys.
constexpr std::int64_t kLeastChunkKeys = 128;

KernelConfig merge_kernel(const AttentionSpec& spec, int sm) {
    KernelConfig kernel;
    kernel.family = Family::merge_splits;
    kernel.backend = Backend::cuda_core;
    kernel.sm = sm;
    kernel.target = fmt::format("sm_{}", sm);
    kernel.dtype = spec.dtype;
    kernel.index_dtype = spec.index_dtype;
    kernel.head_dim_vo = static_cast<int>(spec.head_dim_vo);
    kernel.alignment = spec.alignment;
    kernel.paged = spec.kv == KvStorage::paged;
    kernel.tile_q = kMergeRows;
    kernel.warps_q = kMergeRows;
    kernel.warps_kv = 1;
    kernel.ctas_per_sm = 4;
    return kernel;
}

Numerics numerics_of(const AttentionSpec& spec) {
    const double tolerance = spec.dtype == DType::f16 ? 1e-3 : 1e-2;
    return {tolerance, tolerance};
}

struct Choice {
    std::size_t kernel = 0;
    SplitPlan split{};
    double clocks = std::numeric_limits<double>::infinity();
};

// The best split for one kernel. Candidates are chunk lengths, so that the chunk is a fact of the plan.
Choice best_split(const KernelConfig& kernel, const DeviceTraits& device, const Work& work) {
    Choice best{.clocks = estimated_clocks(kernel, device, work, 1)};
    const std::int64_t tiles = ceil_div(work.of_each.keys, kernel.tile_kv);
    const std::int64_t least = ceil_div(kLeastChunkKeys, kernel.tile_kv);
    std::int64_t previous = 0;
    for (std::int64_t wanted = 2; wanted <= kMostSplits; ++wanted) {
        const std::int64_t chunk_tiles = ceil_div(tiles, wanted);
        if (chunk_tiles < least || chunk_tiles == previous) continue;
        previous = chunk_tiles;
        const std::int64_t splits = ceil_div(tiles, chunk_tiles);
        if (splits < 2) continue;
        const double clocks = estimated_clocks(kernel, device, work, splits);
        if (clocks < best.clocks) best = {0, {chunk_tiles * kernel.tile_kv, splits}, clocks};
    }
    return best;
}

// Without queries, that of one query.
HeadWork head_work(const problem::Problem& problem, std::int64_t max_q_len, std::int64_t kv_len) {
    const AttentionSpec& spec = problem.spec;
    const std::int64_t q_len = std::max<std::int64_t>(1, max_q_len);
    std::int64_t keys = kv_len;
    if (spec.mask == Mask::causal) keys = std::max<std::int64_t>(1, keys - q_len / 2);
    const bool bounded_right = spec.mask == Mask::causal || spec.window_right;
    if (spec.window_left && bounded_right) {
        keys = std::min(
            keys, *spec.window_left + spec.window_right.value_or(0) + 1 + std::min<std::int64_t>(q_len, 64));
    }
    return {.group = problem.group_size(),
            .q_len = q_len,
            .keys = std::max<std::int64_t>(1, keys),
            .bounds = int{spec.window_left.has_value()} + int{bounded_right}};
}

// Of a persistent kernel: a CTA goes on to further items.
std::int64_t resident_ctas(const Plan& plan) {
    return std::int64_t{plan.device.sm_count} * plan.attention->ctas_per_sm;
}

// The wgmma kernel for so many packed query rows goes to `kernels`; why not the others, to `rejected`.
void add_wgmma(const std::vector<TunedKernel>& wgmma, std::int64_t rows, std::vector<TunedKernel>& kernels,
               std::vector<Refusal>& rejected) {
    const auto own = std::find_if(wgmma.begin(), wgmma.end(), [&](const TunedKernel& one) {
        return !one.max_rows || *one.max_rows >= rows;
    });
    for (auto one = wgmma.begin(); one != wgmma.end(); ++one) {
        if (one == own) {
            kernels.push_back(*one);
        } else if (own == wgmma.end() || one->kernel != own->kernel) {
            rejected.push_back(
                {one->kernel.name(),
                 one < own ? fmt::format("for up to {} packed query rows", *one->max_rows)
                           : fmt::format("for more than {} packed query rows", *std::prev(one)->max_rows)});
        }
    }
}

// How the CTAs of a wgmma launch come by the tiles of its streams, which have as many each.
void set_draws(Launch& launch, std::int64_t streams, std::int64_t tiles, bool unequal, std::int64_t ctas) {
    std::int64_t single_streams = streams;
    launch.mixed_streams = 1;
    if (unequal && tiles > 0) {
        // Two single tiles for each CTA even out what the twos have left.
        single_streams = std::min(streams, ceil_div(2 * ctas, tiles));
        launch.mixed_streams = std::max<std::int64_t>(1, single_streams);
        launch.paired_draws = (streams - single_streams) * ceil_div(tiles, 2);
    }
    launch.draws = launch.paired_draws + single_streams * tiles;
    launch.grid = std::min(launch.draws, ctas);
}

}  // namespace

KernelSet kernel_set(const AttentionSpec& spec, int sm, const TuningTable& tuning) {
    KernelSet set;
    if (spec.op == Op::merge) {
        set.kernels.push_back(merge_states_kernel(spec, traits_of(sm)));
        return set;
    }
    set.wgmma = attention_wgmma_kernels(spec, traits_of(sm), tuning, set.rejected);
    for (const TunedKernel& one : set.wgmma) {
        if (std::find(set.kernels.begin(), set.kernels.end(), one.kernel) == set.kernels.end())
            set.kernels.push_back(one.kernel);
    }
    const std::vector<KernelConfig> mma = attention_mma_kernels(spec, traits_of(sm), set.rejected);
    set.kernels.insert(set.kernels.end(), mma.begin(), mma.end());
    if (set.kernels.empty()) {
        throw Unsupported(fmt::format("no kernel for this attention on sm_{}", sm), set.rejected);
    }
    set.kernels.push_back(merge_kernel(spec, sm));
    return set;
}

Plan make_plan(const problem::Problem& problem, const DeviceTraits& device, const TuningTable& tuning) {
    KernelSet set = kernel_set(problem.spec, device.sm, tuning);
    Plan plan;
    plan.problem = problem;
    plan.device = device;
    plan.numerics = numerics_of(problem.spec);
    plan.rejected = set.rejected;
    plan.merge = set.kernels.back();
    set.kernels.pop_back();
    if (problem.spec.op == Op::merge) return plan;

    const Work work{.sequences_and_heads = problem.sizes.batch * problem.spec.kv_heads,
                    .of_each = head_work(problem, problem.sizes.q_len, problem.sizes.kv_len)};
    std::vector<TunedKernel> kernels;
    add_wgmma(set.wgmma, work.of_each.rows(), kernels, plan.rejected);
    for (const KernelConfig& kernel : set.kernels) {
        if (kernel.family != Family::attention_wgmma) kernels.push_back({kernel, TileSource::model});
    }
    if (kernels.empty())
        throw Unsupported(fmt::format("no kernel for this attention on sm_{}", device.sm), plan.rejected);
    Choice best;
    std::vector<Choice> choices;
    for (std::size_t i = 0; i < kernels.size(); ++i) {
        Choice choice = best_split(kernels[i].kernel, device, work);
        choice.kernel = i;
        choices.push_back(choice);
        if (choice.clocks < best.clocks) best = choice;
    }
    plan.attention = kernels[best.kernel].kernel;
    plan.tile_source = kernels[best.kernel].source;
    plan.split = best.split;
    // Splits were counted over the keys that a row sees; chunks lie over all keys.
    if (plan.split.chunk > 0)
        plan.split.splits = std::max<std::int64_t>(1, ceil_div(problem.sizes.kv_len, plan.split.chunk));
    for (const Choice& choice : choices) {
        if (choice.kernel == best.kernel) continue;
        plan.rejected.push_back(
            {kernels[choice.kernel].kernel.name(),
             fmt::format("estimated {:.2f}x the time of the chosen kernel for {} packed query rows",
                         choice.clocks / best.clocks, work.of_each.rows())});
    }
    return plan;
}

Launch launch_of(const Plan& plan, const problem::BoundShape& shape) {
    if (!plan.attention) return merge_states_launch(plan.merge, plan.problem.spec, shape);
    const KernelConfig& attention = *plan.attention;
    const AttentionSpec& spec = plan.problem.spec;
    const HeadWork work = head_work(plan.problem, shape.max_q_len, shape.max_kv_len);
    const QueryTiling tiling = attention.query_tiling(work);
    // Of one part, over all sequences.
    const auto tiles_of = [&](std::int64_t part, std::int64_t tile_rows) {
        const std::int64_t uniform = shape.batch * ceil_div(shape.max_q_len * part, tile_rows);
        return std::min(uniform, shape.q_tokens * part / tile_rows + shape.batch);
    };
    Launch launch;
    launch.rows = shape.q_tokens * spec.q_heads;
    launch.kv_head_shares = tiling.shares;
    launch.tiles = tiles_of(tiling.group, tiling.rows);
    launch.merge_tiles = tiles_of(work.group, plan.merge.tile_q);
    if (plan.split.chunk > 0 && shape.max_kv_len > plan.split.chunk) {
        const std::int64_t least = ceil_div(ceil_div(shape.max_kv_len, kMostSplits), attention.tile_kv);
        launch.chunk = std::max(plan.split.chunk, least * attention.tile_kv);
        launch.splits = ceil_div(shape.max_kv_len, launch.chunk);
    }
    const std::int64_t heads = spec.kv_heads * tiling.shares;
    launch.items = launch.tiles * heads * launch.splits;
    launch.grid = launch.items;
    if (attention.family == Family::attention_wgmma) {
        const std::int64_t uniform = ceil_div(shape.max_q_len * tiling.group, tiling.rows);
        const bool is_uniform = launch.tiles == shape.batch * uniform;
        launch.sequence_tiles = is_uniform ? uniform : 0;
        set_draws(launch, heads * launch.splits * (is_uniform ? shape.batch : 1),
                  is_uniform ? uniform : launch.tiles, work.bounds > 0 || !is_uniform, resident_ctas(plan));
    }
    launch.merge_grid = launch.splits > 1 ? launch.merge_tiles * spec.kv_heads : 0;
    launch.partial_o_offset = abi::kStatusBytes;
    launch.partial_ml_offset = launch.partial_o_offset;
    launch.workspace_bytes = abi::kStatusBytes;
    // A shorter bound may have more chunks, where the chunk has grown to keep within the most splits.
    const std::int64_t most_splits =
        plan.split.chunk > 0 ? std::min(kMostSplits, ceil_div(shape.max_kv_len, plan.split.chunk)) : 1;
    if (most_splits > 1) {
        const std::int64_t partial_rows = most_splits * launch.rows;
        launch.partial_ml_offset += ceil_div(partial_rows * spec.head_dim_vo * 4, 256) * 256;
        launch.workspace_bytes = launch.partial_ml_offset + ceil_div(partial_rows * 8, 256) * 256;
    }
    return launch;
}

void check_grid(const Plan& plan, const Launch& launch) {
    const std::int64_t ctas = std::max(launch.items, launch.merge_grid);
    if (ctas <= kMostCtas) return;
    const std::int64_t heads = plan.problem.spec.q_heads;
    if (!plan.attention) {
        throw InvalidRequest(
            "q_tokens", std::to_string(launch.rows / heads),
            fmt::format("at most {} in one merge of {} heads", kMostCtas * plan.merge.tile_q / heads, heads));
    }
    throw InvalidRequest(
        "batch", fmt::format("bounds that need {} CTAs", ctas),
        fmt::format("sequences and lengths that need at most {} CTAs; divide the batch", kMostCtas));
}

}  // namespace attnsmith::planner
