#include "planner/kernel_config.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "abi/attention_wgmma.h"

namespace attnsmith::planner {

std::string_view to_string(Family family) {
    switch (family) {
        case Family::attention_mma:
            return "attention_mma";
        case Family::attention_wgmma:
            return "attention_wgmma";
        case Family::merge_splits:
            return "merge_splits";
        case Family::merge_states:
            return "merge_states";
    }
    return "?";
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

int KernelConfig::rows_per_tile(std::int64_t group) const {
    if (family != Family::attention_wgmma) return tile_q;
    return static_cast<int>(tile_q / abi::kWgmmaRows * (abi::kWgmmaRows / group * group));
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
                           paged ? "paged" : "contiguous", tile_q, tile_kv, stages);
        if (softcap) text += " softcap";
        if (alibi) text += " alibi";
    }
    if (alignment != 16) text += fmt::format(" align {}", alignment);
    if (index_dtype == DType::i64) text += " int64";
    return text;
}

}  // namespace attnsmith::planner
