#include "ops/request_checks.hpp"

#include <fmt/format.h>

#include "attnsmith/error.hpp"
#include "problem/ceil_div.hpp"
#include "problem/limits.hpp"
#include "problem/request/size_checks.hpp"
#include "problem/request/spec_facts.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::ops {

using namespace problem;

namespace {

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

}  // namespace

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

void normalise_latents(AttentionSpec& spec) {
    check_latent_dim("head_dim_ckv", spec.head_dim_ckv, kMinLatentDim, kMaxHeadDim, kMinLatentDim);
    check_latent_dim("head_dim_kpe", spec.head_dim_kpe, 0, kMaxPositionDim, kHeadDimStep);
    check_range("q_heads", spec.q_heads, 1, kMaxHeads);
    if (spec.kv_heads == 0) spec.kv_heads = 1;
    if (spec.kv_heads != 1)
        throw InvalidRequest("kv_heads", std::to_string(spec.kv_heads),
                             "1 or nothing: all query heads share the latent");
}

// Kernels take these, their quotient and their products with constants in fp32: all must be ordinary there.
void check_factor(std::string_view field, double value, std::string_view none) {
    constexpr double kLeast = 0x1p-60;
    constexpr double kMost = 0x1p60;
    if (value >= kLeast && value <= kMost) return;  // false for NaN
    throw InvalidRequest(
        std::string(field), fmt::format("{}", value),
        fmt::format("a finite number above 0 (from {:.3g} to {:.3g}){}", kLeast, kMost, none));
}

void normalise_output(AttentionSpec& spec) {
    if (!spec.o_dtype) spec.o_dtype = spec.dtype;
    if (*spec.o_dtype == spec.dtype || *spec.o_dtype == DType::fp32) return;
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

}  // namespace attnsmith::ops
