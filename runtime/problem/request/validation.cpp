#include "problem/request/validation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "attnsmith/error.hpp"
#include "problem/ceil_div.hpp"
#include "problem/limits.hpp"
#include "problem/request/spec_facts.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::problem {
namespace {

void check_range(std::string_view field, std::int64_t value, std::int64_t least, std::int64_t most) {
    if (value >= least && value <= most) return;
    throw InvalidRequest(std::string(field), std::to_string(value),
                         fmt::format("an integer from {} to {}", least, most));
}

void check_head_dim(std::string_view field, std::int64_t value, std::string_view shown_as) {
    if (value < 1)
        throw InvalidRequest(
            std::string(field), std::to_string(value),
            fmt::format("a multiple of {} from {} to {}", kHeadDimStep, kMinHeadDim, kMaxHeadDim));
    if (value <= kMaxHeadDim && value % kHeadDimStep == 0) return;
    const std::string next =
        value > kMaxHeadDim ? ""
                            : fmt::format("; the next is {}", ceil_div(value, kHeadDimStep) * kHeadDimStep);
    throw Unsupported(fmt::format("{} {} is not supported; supported are multiples of {} up to {}{}",
                                  shown_as, value, kHeadDimStep, kMaxHeadDim, next),
                      {});
}

void check_latent_dim(std::string_view field, std::int64_t value, std::int64_t least, std::int64_t most,
                      std::int64_t step) {
    if (value >= least && value <= most && value % step == 0) return;
    if (value < least)
        throw InvalidRequest(std::string(field), std::to_string(value),
                             fmt::format("a multiple of {} from {} to {}", step, least, most));
    throw Unsupported(fmt::format("{} {} is not supported; supported are multiples of {} from {} to {}",
                                  field, value, step, least, most),
                      {});
}

// One head_dim, as most callers give it, or both by their own names.
void normalise_head_dims(AttentionSpec& spec) {
    if (spec.head_dim_vo == 0) spec.head_dim_vo = spec.head_dim_qk;
    const bool is_one = spec.head_dim_vo == spec.head_dim_qk;
    check_head_dim("head_dim_qk", spec.head_dim_qk, is_one ? "head_dim" : "head_dim_qk");
    check_head_dim("head_dim_vo", spec.head_dim_vo, "head_dim_vo");
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

// Kernels take these, their quotient and their products with constants in fp32: all must be ordinary there.
void check_factor(std::string_view field, double value, std::string_view none = "") {
    constexpr double kLeast = 0x1p-60;
    constexpr double kMost = 0x1p60;
    if (value >= kLeast && value <= kMost) return;  // false for NaN
    throw InvalidRequest(
        std::string(field), fmt::format("{}", value),
        fmt::format("a finite number above 0 (from {:.3g} to {:.3g}){}", kLeast, kMost, none));
}

void normalise_factors(AttentionSpec& spec) {
    if (!spec.scale) spec.scale = 1.0 / std::sqrt(static_cast<double>(spec.head_dim_qk));
    check_factor("scale", *spec.scale);
    if (spec.softcap == 0.0) spec.softcap.reset();  // the other libraries' word for none
    if (spec.softcap) check_factor("softcap", *spec.softcap, ", or 0 for none");
}

void normalise_output(AttentionSpec& spec) {
    if (!spec.o_dtype) spec.o_dtype = spec.dtype;
    if (*spec.o_dtype == spec.dtype || *spec.o_dtype == DType::f32) return;
    throw InvalidRequest("o_dtype", std::string(to_string(*spec.o_dtype)),
                         fmt::format("{}, as dtype is, or fp32", to_string(spec.dtype)));
}

// Tensor cores and copies to shared memory take 16 elements of 8 bits at a time.
void check_fp8_head_dim(std::string_view field, std::int64_t value, std::string_view dtype_field,
                        DType dtype) {
    constexpr std::int64_t kStep = 16;
    if (value % kStep == 0) return;
    throw Unsupported(fmt::format("{} {} with {} {} is not supported; supported are multiples of {}", field,
                                  value, dtype_field, to_string(dtype), kStep),
                      {});
}

[[noreturn]] void refuse_blocks(std::string_view field, std::int64_t value, std::string_view supported) {
    throw Unsupported(
        fmt::format("kv_scale block128 with {} {} is not supported; supported is {} {}; kv_scale "
                    "token_head takes any",
                    field, value, field, supported),
        {});
}

// A head is one block of columns at most, and latents are whole ones, a power of two of them.
void check_blocks(const AttentionSpec& spec) {
    if (spec.kv_scale != KvScale::block128) return;
    if (is_latent(spec)) {
        // Each warp of every kernel has columns of one block alone then.
        const std::int64_t blocks = spec.head_dim_ckv / kScaleBlock;
        if (spec.head_dim_ckv % kScaleBlock != 0 || (blocks & (blocks - 1)) != 0)
            refuse_blocks("head_dim_ckv", spec.head_dim_ckv, "128, 256 or 512");
        return;
    }
    const std::string supported = fmt::format("up to {}", kScaleBlock);
    if (spec.head_dim_qk > kScaleBlock) refuse_blocks("head_dim_qk", spec.head_dim_qk, supported);
    if (spec.head_dim_vo > kScaleBlock) refuse_blocks("head_dim_vo", spec.head_dim_vo, supported);
}

void normalise_keys_and_values(AttentionSpec& spec) {
    if (!spec.kv_dtype) spec.kv_dtype = spec.dtype;
    const DType dtype = *spec.kv_dtype;
    if (is_fp8(dtype)) {
        check_fp8_head_dim("head_dim_qk", spec.head_dim_qk, "kv_dtype", dtype);
        check_fp8_head_dim("head_dim_vo", spec.head_dim_vo, "kv_dtype", dtype);
        check_fp8_head_dim("head_dim_ckv", spec.head_dim_ckv, "kv_dtype", dtype);
        if (is_fp8(position_dtype(spec)))
            check_fp8_head_dim("head_dim_kpe", spec.head_dim_kpe, "kv_dtype", dtype);
        check_blocks(spec);
        return;
    }
    if (dtype != spec.dtype)
        throw InvalidRequest("kv_dtype", std::string(to_string(dtype)),
                             fmt::format("{}, as dtype is, e4m3 or e5m2", to_string(spec.dtype)));
    if (spec.kv_scale != KvScale::none)
        throw InvalidRequest("kv_scale", std::string(to_string(spec.kv_scale)),
                             fmt::format("nothing or none, since kv_dtype is {}; scales are of e4m3 and e5m2",
                                         to_string(dtype)));
}

// A causal mask ends at the query's own key, so it would drop a window to the right of it.
void normalise_window(AttentionSpec& spec) {
    if (spec.mask != Mask::causal || !spec.window_right) return;
    if (*spec.window_right != 0)
        throw InvalidRequest(
            "window_right", std::to_string(*spec.window_right),
            "nothing, -1 or 0 with mask causal, which ends at the query's own key; or mask full");
    spec.window_right.reset();
}

void normalise_storage(AttentionSpec& spec) {
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
    if (spec.page_order != AttentionSpec{}.page_order) {
        throw InvalidRequest("page_order", std::string(to_string(spec.page_order)),
                             fmt::format("nothing or {}, since kv is {}; pages need kv paged",
                                         to_string(AttentionSpec{}.page_order), to_string(spec.kv)));
    }
}

void check_query_rows(const PlanSizes& sizes, std::int64_t q_heads) {
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

}  // namespace

void validate_attention(AttentionSpec& spec, const PlanSizes& sizes) {
    normalise_head_dims(spec);
    normalise_heads(spec);
    normalise_window(spec);
    normalise_factors(spec);
    normalise_output(spec);
    normalise_keys_and_values(spec);
    normalise_storage(spec);
    check_sizes(spec, sizes);
}

void validate_mla(AttentionSpec& spec, const PlanSizes& sizes) {
    check_latent_dim("head_dim_ckv", spec.head_dim_ckv, kMinLatentDim, kMaxHeadDim, kMinLatentDim);
    check_latent_dim("head_dim_kpe", spec.head_dim_kpe, 0, kMaxPositionDim, kHeadDimStep);
    check_range("q_heads", spec.q_heads, 1, kMaxHeads);
    if (spec.kv_heads == 0) spec.kv_heads = 1;
    if (spec.kv_heads != 1)
        throw InvalidRequest("kv_heads", std::to_string(spec.kv_heads),
                             "1 or nothing: all query heads share the latent");
    if (!spec.scale)
        throw InvalidRequest(
            "scale", "nothing",
            "the model's factor on q k^T, as head_dim_ckv and head_dim_kpe do not tell it: "
            "1/sqrt(192) where keys have 128 columns and 64 of the position before W_UK is absorbed, "
            "times the square of YaRN's mscale where the model has that");
    check_factor("scale", *spec.scale);
    normalise_output(spec);
    normalise_keys_and_values(spec);
    normalise_storage(spec);
    check_sizes(spec, sizes);
}

void validate_merge(AttentionSpec& spec, const PlanSizes& sizes) {
    check_head_dim("head_dim_vo", spec.head_dim_vo, "head_dim");
    check_range("q_heads", spec.q_heads, 1, kMaxHeads);
    check_sizes(spec, sizes);
}

namespace {

// Heads of their own columns, or latents with the one head that all queries share.
void normalise_appended_heads(AttentionSpec& spec) {
    if (!is_latent(spec)) {
        normalise_head_dims(spec);
        normalise_heads(spec);
        return;
    }
    check_latent_dim("head_dim_ckv", spec.head_dim_ckv, kMinLatentDim, kMaxHeadDim, kMinLatentDim);
    check_latent_dim("head_dim_kpe", spec.head_dim_kpe, 0, kMaxPositionDim, kHeadDimStep);
    check_range("q_heads", spec.q_heads, 1, kMaxHeads);
    if (spec.kv_heads == 0) spec.kv_heads = 1;
    if (spec.kv_heads != 1)
        throw InvalidRequest("kv_heads", std::to_string(spec.kv_heads),
                             "1 or nothing: all query heads share the latent");
}

// A field that says nothing in this request, and was given.
void refuse_unused(std::string_view field, bool is_given, const std::string& value, std::string_view needs) {
    if (is_given)
        throw InvalidRequest(std::string(field), value, fmt::format("nothing: it counts with {}", needs));
}

void normalise_rope(AttentionSpec& spec) {
    const auto factor = [&] { return fmt::format("{}", spec.rope_factor.value_or(0)); };
    if (spec.rope == Rope::none) {
        constexpr const char* kNeeds = "a rope alone, half or interleaved";
        refuse_unused("rotary_dim", spec.rotary_dim != 0, std::to_string(spec.rotary_dim), kNeeds);
        refuse_unused("rope_table", spec.rope_table != RopeTable::cos_sin,
                      std::string(to_string(spec.rope_table)), kNeeds);
        refuse_unused("rope_factor", spec.rope_factor.has_value(), factor(), kNeeds);
        return;
    }
    const bool latent = is_latent(spec);
    const std::int64_t columns = latent ? spec.head_dim_kpe : spec.head_dim_qk;
    if (columns == 0)
        throw InvalidRequest("rope", std::string(to_string(spec.rope)),
                             "none, since head_dim_kpe is 0: there are no columns of the position");
    if (spec.rotary_dim == 0) spec.rotary_dim = columns;
    if (spec.rotary_dim < 2 || spec.rotary_dim > columns || spec.rotary_dim % 2 != 0)
        throw InvalidRequest("rotary_dim", std::to_string(spec.rotary_dim),
                             fmt::format("an even number from 2 to {}, which is {}, or 0 for all of them",
                                         columns, latent ? "head_dim_kpe" : "head_dim_qk"));
    if (spec.rope_table == RopeTable::frequencies) {
        if (!spec.rope_factor) spec.rope_factor = 1.0;
        return check_factor("rope_factor", *spec.rope_factor);
    }
    refuse_unused("rope_factor", spec.rope_factor.has_value(), factor(),
                  "rope_table frequencies alone; a table of cosines and sines has it already");
}

void normalise_norms(AttentionSpec& spec) {
    if (!spec.q_norm && !spec.k_norm && !spec.v_norm) {
        const std::string eps = fmt::format("{}", spec.norm_eps.value_or(0));
        return refuse_unused("norm_eps", spec.norm_eps.has_value(), eps, "q_norm, k_norm or v_norm alone");
    }
    if (!spec.norm_eps) spec.norm_eps = 1e-6;
    check_factor("norm_eps", *spec.norm_eps);
}

void normalise_written_queries(AttentionSpec& spec) {
    if (!spec.q_dtype) spec.q_dtype = spec.dtype;
    const DType dtype = *spec.q_dtype;
    if (is_fp8(dtype))
        return is_latent(spec) ? check_fp8_head_dim("head_dim_kpe", spec.head_dim_kpe, "q_dtype", dtype)
                               : check_fp8_head_dim("head_dim_qk", spec.head_dim_qk, "q_dtype", dtype);
    if (dtype != spec.dtype)
        throw InvalidRequest("q_dtype", std::string(to_string(dtype)),
                             fmt::format("{}, as dtype is, e4m3 or e5m2", to_string(spec.dtype)));
}

}  // namespace

void validate_append(AttentionSpec& spec, const PlanSizes& sizes) {
    normalise_appended_heads(spec);
    normalise_keys_and_values(spec);
    if (spec.kv == KvStorage::ragged)
        throw InvalidRequest("kv", "ragged", "dense or paged: there is no room behind ragged sequences");
    normalise_storage(spec);
    normalise_rope(spec);
    normalise_norms(spec);
    normalise_written_queries(spec);
    refuse_unused("check_slots", spec.check_slots && spec.slots == Slots::table, "true",
                  "slots mapping alone; a table gives each token of a sequence a slot of its own");
    check_sizes(spec, sizes);
}

void check_sizes(const AttentionSpec& spec, const PlanSizes& sizes) {
    check_query_rows(sizes, spec.q_heads);
    if (spec.kv_heads > 0) check_packed_queries(sizes, spec.q_heads / spec.kv_heads);
}

}  // namespace attnsmith::problem
