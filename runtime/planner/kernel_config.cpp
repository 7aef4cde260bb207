#include "planner/kernel_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "abi/attention_wgmma.h"
#include "planner/backends.hpp"
#include "planner/ceil_div.hpp"

namespace attnsmith::planner {

namespace {

struct KnownFamily {
    Family family;
    std::string_view name;
    Backend backend;
};

constexpr KnownFamily kFamilies[] = {{Family::attention_mma, "attention_mma", Backend::mma},
                                     {Family::attention_wgmma, "attention_wgmma", Backend::wgmma},
                                     {Family::merge_splits, "merge_splits", Backend::cuda_core},
                                     {Family::merge_states, "merge_states", Backend::cuda_core}};

}  // namespace

std::string_view to_string(Family family) {
    const auto found = std::ranges::find(kFamilies, family, &KnownFamily::family);
    return found == std::end(kFamilies) ? "?" : found->name;
}

std::vector<Backend> backends() {
    std::vector<Backend> known;
    for (const KnownFamily& family : kFamilies) {
        if (std::ranges::find(known, family.backend) == known.end()) known.push_back(family.backend);
    }
    return known;
}

std::string_view to_string(Backend backend) {
    switch (backend) {
        case Backend::mma:
            return "mma";
        case Backend::wgmma:
            return "wgmma";
        case Backend::cuda_core:
            return "cuda_core";
    }
    return "?";
}

std::int64_t QueryTiling::tiles(std::int64_t q_len) const { return ceil_div(q_len * group, rows) * shares; }

QueryTiling KernelConfig::query_tiling(const HeadWork& work) const {
    if (family != Family::attention_wgmma) return {.shares = 1, .group = work.group, .rows = tile_q};
    // The rows of a warpgroup are whole tokens of a part: a smaller part may leave fewer of them unused. But
    // then a tile has more tokens, and goes through the keys of them all.
    const auto cost = [&](const QueryTiling& tiling) {
        const std::int64_t tokens = std::min(work.q_len, tiling.rows / tiling.group);
        const std::int64_t half_keys = 2 * work.keys + work.bounds * tokens;
        return static_cast<double>(tiling.tiles(work.q_len)) * static_cast<double>(half_keys);
    };
    constexpr double kWorthDividing = 31.0 / 32;
    const std::int64_t warpgroups = tile_q / abi::kWgmmaRows;
    std::optional<QueryTiling> best;
    for (std::int64_t part = std::min<std::int64_t>(work.group, abi::kWgmmaRows); part > 0; --part) {
        if (work.group % part != 0) continue;
        const QueryTiling tiling{
            .shares = work.group / part, .group = part, .rows = warpgroups * (abi::kWgmmaRows / part) * part};
        if (!best || cost(tiling) < cost(*best) * kWorthDividing) best = tiling;
    }
    return *best;
}

int KernelConfig::registers_ceiling() const {
    constexpr int kPerSm = 65536;
    return std::min(255, kPerSm / (ctas_per_sm * threads()) / 8 * 8);
}

std::string KernelConfig::name() const {
    std::string text;
    if (family == Family::merge_splits) {
        text = fmt::format("merge {} {}", attnsmith::to_string(dtype), head_dim_vo);
    } else if (family == Family::merge_states) {
        text = fmt::format("merge states {} {}", attnsmith::to_string(dtype), head_dim_vo);
    } else {
        text = fmt::format("attention {} {} {}x{} {} {}x{} stages {}", to_string(backend),
                           attnsmith::to_string(dtype), head_dim_qk, head_dim_vo,
                           gather  ? "gather"
                           : paged ? "paged"
                                   : "contiguous",
                           tile_q, tile_kv, stages);
        if (softcap) text += " softcap";
        if (alibi) text += " alibi";
    }
    if (alignment != 16) text += fmt::format(" align {}", alignment);
    if (index_dtype == DType::i64) text += " int64";
    return text;
}

}  // namespace attnsmith::planner
