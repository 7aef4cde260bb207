#include "problem/request/problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "attnsmith/error.hpp"
#include "problem/built.hpp"
#include "problem/limits.hpp"
#include "problem/request/request_fields.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::problem {
namespace {

constexpr std::array<int, 4> kAlignments = {16, 8, 4, 2};

void check_range(std::string_view field, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value >= least && value <= most) return;
    throw InvalidRequest(std::string(field), std::to_string(value),
                         fmt::format("an integer from {} to {}", least, most));
}

// An enumerator of the list, which a cast from an integer need not be.
template <typename Enum>
void check_word(std::string_view field, Enum value, Words which) {
    const auto words = words_of(which);
    if (std::ranges::find(words, to_string(value)) != words.end()) return;
    throw InvalidRequest(std::string(field), std::string(to_string(value)), join_or(words));
}

void check_head_dim(std::string_view field, std::string_view of, std::int64_t value) {
    const std::string built =
        fmt::format("a multiple of {} from {} to {}", kHeadDimStep, kMinHeadDim, kMaxHeadDim);
    if (value < 1) throw InvalidRequest(std::string(field), std::to_string(value), built);
    if (value <= kMaxHeadDim && value % kHeadDimStep == 0) return;
    const std::string reason = value > kMaxHeadDim
                                   ? fmt::format("it is above {}", kMaxHeadDim)
                                   : fmt::format("the next larger one that is built is {}",
                                                 (value + kHeadDimStep - 1) / kHeadDimStep * kHeadDimStep);
    throw Unsupported(
        fmt::format("a head dimension of {} of {} is not built in this version of attnsmith; what is "
                    "built is {}",
                    value, of, built),
        {{fmt::format("{} {}", field, value), reason}});
}

void normalise_head_dims(AttentionSpec& spec) {
    check_head_dim("head_dim_qk", "q and k", spec.head_dim_qk);
    if (spec.head_dim_vo == 0) spec.head_dim_vo = spec.head_dim_qk;
    check_head_dim("head_dim_vo", "v and o", spec.head_dim_vo);
}

void normalise_heads(AttentionSpec& spec) {
    check_range("q_heads", spec.q_heads, 1, kMaxHeads);
    if (spec.kv_heads == 0) spec.kv_heads = spec.q_heads;
    check_range("kv_heads", spec.kv_heads, 1, kMaxHeads);
    if (spec.q_heads % spec.kv_heads != 0) {
        throw InvalidRequest("kv_heads", std::to_string(spec.kv_heads),
                             fmt::format("a divisor of q_heads, which is {}", spec.q_heads));
    }
}

// FlashAttention and FlashInfer write -1 for no bound. A window that reaches past the longest sequence is no
// window.
void normalise_window(std::string_view field, std::optional<std::int64_t>& window) {
    constexpr std::int64_t kNoBound = -1;
    if (!window) return;
    if (*window < kNoBound) {
        throw InvalidRequest(std::string(field), std::to_string(*window),
                             "an integer from 0, or -1 or nothing for no bound on this side");
    }
    if (*window == kNoBound || *window >= kMaxLength) window.reset();
}

void normalise_mask(AttentionSpec& spec) {
    check_word("mask", spec.mask, Words::mask);
    normalise_window("window_left", spec.window_left);
    normalise_window("window_right", spec.window_right);
    if (spec.mask == Mask::causal) spec.window_right.reset();  // the mask ends at the query already
}

// Kernels take these, their quotient and their products with constants in fp32: all must be ordinary there.
void check_factor(std::string_view field, double value) {
    constexpr double kLeast = 0x1p-60;
    constexpr double kMost = 0x1p60;
    if (value >= kLeast && value <= kMost) return;  // false for NaN
    throw InvalidRequest(std::string(field), fmt::format("{}", value),
                         fmt::format("a finite number above 0 (from {:.3g} to {:.3g})", kLeast, kMost));
}

void normalise_factors(AttentionSpec& spec) {
    if (!spec.scale) spec.scale = 1.0 / std::sqrt(static_cast<double>(spec.head_dim_qk));
    check_factor("scale", *spec.scale);
    if (spec.softcap == 0.0) spec.softcap.reset();  // the other libraries' word for none
    if (spec.softcap) check_factor("softcap", *spec.softcap);
}

void normalise_storage(AttentionSpec& spec) {
    check_word("kv", spec.kv, Words::kv);
    check_word("page_order", spec.page_order, Words::page_order);
    if (spec.kv == KvStorage::paged) {
        if (spec.page_size == 0) {
            throw InvalidRequest("page_size", "nothing",
                                 fmt::format("an integer from 1 to {}, since kv is paged", kMaxPageSize));
        }
        check_range("page_size", spec.page_size, 1, kMaxPageSize);
        return;
    }
    if (spec.page_size != 0) {
        throw InvalidRequest(
            "page_size", std::to_string(spec.page_size),
            fmt::format("nothing or 0, since kv is {}; pages need kv paged", to_string(spec.kv)));
    }
    spec.page_order = PageOrder::NHD;  // says nothing without pages: one spelling for one problem
}

void check_alignment(int alignment) {
    if (std::ranges::find(kAlignments, alignment) != kAlignments.end()) return;
    throw InvalidRequest("alignment", std::to_string(alignment), "16, 8, 4 or 2 bytes");
}

void check_sizes(const PlanSizes& sizes, std::int64_t q_heads) {
    check_range("batch", sizes.batch, 1, kMaxBatch);
    check_range("q_len", sizes.q_len, 0, kMaxLength);
    check_range("kv_len", sizes.kv_len, 0, kMaxLength);
    if (sizes.batch * sizes.q_len > kMaxQueryRows / q_heads) {  // at most 2^50
        throw InvalidRequest("batch", std::to_string(sizes.batch),
                             fmt::format("at most {} with {} queries of {} heads",
                                         kMaxQueryRows / q_heads / sizes.q_len, sizes.q_len, q_heads));
    }
}

void check_packed_queries(const PlanSizes& sizes, std::int64_t group_size) {
    if (sizes.q_len * group_size > kMaxPackedQueries) {  // at most 2^46: no overflow
        throw InvalidRequest("q_len", std::to_string(sizes.q_len),
                             fmt::format("at most {} with {} query heads to each KV head",
                                         kMaxPackedQueries / group_size, group_size));
    }
}

Problem validate_merge(const AttentionSpec& spec, const PlanSizes& sizes) {
    refuse_other_fields({spec, sizes, {}});
    check_head_dim("head_dim_vo", "v and o", spec.head_dim_vo);
    check_range("q_heads", spec.q_heads, 1, kMaxHeads);
    check_alignment(spec.alignment);
    check_sizes(sizes, spec.q_heads);
    return {spec, sizes};
}

}  // namespace

bool is_built(Op op) { return op == Op::attention || op == Op::merge; }

void check_built(Op op) {
    if (is_built(op)) return;
    throw Unsupported(fmt::format("op {} is not built in this version of attnsmith", to_string(op)), {});
}

Problem validate(const AttentionSpec& spec, const PlanSizes& sizes) {
    check_word("op", spec.op, Words::op);
    check_built(spec.op);
    check_built(spec.dtype);
    check_word("dtype", spec.dtype, Words::float_dtype);
    if (spec.op == Op::merge) return validate_merge(spec, sizes);
    Problem problem{spec, sizes};
    AttentionSpec& normal = problem.spec;
    normalise_head_dims(normal);
    normalise_heads(normal);
    normalise_mask(normal);
    normalise_factors(normal);
    normalise_storage(normal);
    check_word("index_dtype", normal.index_dtype, Words::index_dtype);
    check_alignment(normal.alignment);
    check_word("precision", normal.precision, Words::precision);
    check_word("consistency", normal.consistency, Words::consistency);
    check_sizes(sizes, normal.q_heads);
    check_packed_queries(sizes, problem.group_size());
    return problem;
}

}  // namespace attnsmith::problem
