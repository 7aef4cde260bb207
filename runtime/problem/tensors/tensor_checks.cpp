#include "problem/tensors/tensor_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "attnsmith/error.hpp"
#include "problem/ceil_div.hpp"
#include "problem/limits.hpp"
#include "problem/request/spec_facts.hpp"
#include "problem/tensors/overlap.hpp"

namespace attnsmith::problem {
namespace {

bool is_empty(const Tensor& tensor) {
    return std::ranges::find(tensor.shape.begin(), tensor.shape.begin() + tensor.rank, 0) !=
           tensor.shape.begin() + tensor.rank;
}

// Bytes from the first to the last, or nothing where that is no 64-bit number.
std::optional<std::int64_t> reach_of(const Named& named) {
    const std::int64_t size = size_of(named.tensor.dtype);
    std::int64_t bytes = size;
    for (int axis = 0; axis < named.tensor.rank; ++axis) {
        if (named.extent(axis) <= 1) continue;
        std::int64_t step = 0;
        if (__builtin_mul_overflow(named.stride(axis), size, &step) ||
            __builtin_mul_overflow(step, named.extent(axis) - 1, &step) ||
            __builtin_add_overflow(bytes, step, &bytes)) {
            return std::nullopt;
        }
    }
    return bytes;
}

// No step back, and no product or sum that wraps. The bytes from the first to the last.
std::int64_t checked_reach(const Named& named) {
    int widest = 0;
    for (int axis = 0; axis < named.tensor.rank; ++axis) {
        if (named.extent(axis) <= 1) continue;
        if (named.stride(axis) < 0) {
            refuse(named.at("strides", axis), std::to_string(named.stride(axis)), "a stride from 0");
        }
        if (named.extent(widest) <= 1 || named.stride(axis) > named.stride(widest)) widest = axis;
    }
    const std::optional<std::int64_t> bytes = reach_of(named);
    if (!bytes) {
        refuse(named.at("strides", widest), std::to_string(named.stride(widest)),
               "strides that keep the tensor within 2^63 bytes");
    }
    return *bytes;
}

}  // namespace

std::string Named::text() const {
    return index < 0 ? fmt::format("{}{}", within, name) : fmt::format("{}{}[{}]", within, name, index);
}
std::string Named::part(std::string_view what) const { return fmt::format("{}.{}", text(), what); }
std::string Named::at(std::string_view what, int axis) const {
    return fmt::format("{}.{}[{}]", text(), what, axis);
}

void refuse(std::string field, std::string value, std::string accepted) {
    throw InvalidRequest(std::move(field), std::move(value), std::move(accepted));
}

void check_present(const Named& named, std::string_view why) {
    if (!named.present()) refuse(named.text(), "an absent tensor", std::string(why));
}

void refuse_extra(const Named& named, std::string_view belongs_to) {
    if (!named.present()) return;
    refuse(named.text(), "a tensor", fmt::format("nothing: it belongs to {}", belongs_to));
}

void check_dtype(const Named& named, DType expected) {
    if (named.tensor.dtype == expected) return;
    refuse(named.part("dtype"), std::string(to_string(named.tensor.dtype)), std::string(to_string(expected)));
}

void check_stored_dtype(const Named& named, DType expected) {
    if (is_fp8(expected) && named.tensor.dtype == DType::uint8) return;
    check_dtype(named, expected);
}

void check_shape(const Named& named, std::initializer_list<Expected> axes) {
    if (named.tensor.rank != static_cast<int>(axes.size())) {
        std::string meanings;
        for (const Expected& axis : axes)
            meanings += (meanings.empty() ? "" : ", ") + std::string(axis.meaning);
        refuse(named.part("rank"), std::to_string(named.tensor.rank),
               fmt::format("{} [{}]", axes.size(), meanings));
    }
    int axis = 0;
    for (const Expected& expected : axes) {
        const std::int64_t extent = named.extent(axis);
        if (expected.extent == kAny ? extent < 0 || extent > kMaxLength : extent != expected.extent) {
            refuse(named.at("shape", axis), std::to_string(extent),
                   expected.extent == kAny ? fmt::format("{} from 0 to {}", expected.meaning, kMaxLength)
                                           : fmt::format("{} ({})", expected.extent, expected.meaning));
        }
        ++axis;
    }
}

std::int64_t bytes_of(const Tensor& tensor) {
    return is_empty(tensor) ? 0 : reach_of({"", tensor}).value_or(0);
}

std::optional<std::string> base_refusal(const void* address, std::int64_t bytes, std::int64_t alignment) {
    const auto base = reinterpret_cast<std::uintptr_t>(address);
    std::uintptr_t end = 0;
    if (__builtin_add_overflow(base, static_cast<std::uintptr_t>(bytes), &end))
        return fmt::format("an address with {} bytes after it", bytes);
    if (base % static_cast<std::uintptr_t>(alignment) != 0)
        return fmt::format("an address that is a multiple of {} bytes", alignment);
    return std::nullopt;
}

std::int64_t operand_alignment(const AttentionSpec& spec, DType dtype) {
    return std::max<std::int64_t>(spec.alignment, size_of(dtype));
}

void check_memory(const Named& named, std::int64_t alignment) {
    if (is_empty(named.tensor)) return;
    if (named.tensor.data == nullptr) refuse(named.part("data"), "a null pointer", "device memory");
    const std::int64_t bytes = checked_reach(named);
    if (auto accepted = base_refusal(named.tensor.data, bytes, alignment)) {
        refuse(named.part("data"), fmt::format("{}", fmt::ptr(named.tensor.data)), *std::move(accepted));
    }
}

void check_inner_stride(const Named& named) {
    const int last = named.tensor.rank - 1;
    if (is_empty(named.tensor) || named.extent(last) <= 1 || named.stride(last) == 1) return;
    refuse(named.at("strides", last), std::to_string(named.stride(last)), "1: the last axis is contiguous");
}

void check_operand(const Named& named, const AttentionSpec& spec) {
    const std::int64_t size = size_of(named.tensor.dtype);
    check_memory(named, operand_alignment(spec, named.tensor.dtype));
    check_inner_stride(named);
    if (is_empty(named.tensor)) return;
    const std::int64_t step = std::max<std::int64_t>(1, spec.alignment / size);
    for (int axis = 0; axis + 1 < named.tensor.rank; ++axis) {
        if (named.extent(axis) <= 1 || named.stride(axis) % step == 0) continue;
        refuse(
            named.at("strides", axis), std::to_string(named.stride(axis)),
            fmt::format("a multiple of {} elements ({} bytes, the spec's alignment)", step, spec.alignment));
    }
}

void check_vector(const Named& named, DType dtype, Expected extent) {
    check_dtype(named, dtype);
    check_shape(named, {extent});
    check_memory(named, size_of(dtype));
    check_inner_stride(named);
}

void check_kv_scale(const Named& named, const AttentionSpec& spec) {
    const bool of_heads = spec.kv_scale == KvScale::head;
    if (!named.present())
        check_present(named, fmt::format("fp32 [{}], since the spec's kv_scale is {}",
                                         of_heads ? "kv_heads" : "1", to_string(spec.kv_scale)));
    check_vector(named, DType::fp32, of_heads ? Expected{spec.kv_heads, "kv_heads"} : Expected{1, "scales"});
}

void check_token_scales(const Named& named, const Named& cache, const AttentionSpec& spec) {
    const bool of_blocks = spec.kv_scale == KvScale::block128;
    const int outer = cache.tensor.rank - 1, rank = outer + (of_blocks ? 1 : 0);
    const auto meaning = [&] {
        return fmt::format("the axes of {} but the last{}", cache.text(),
                           of_blocks ? fmt::format(", and one of {} columns a block", kScaleBlock) : "");
    };
    if (!named.present())
        check_present(named, fmt::format("fp32, {}, since the spec's kv_scale is {}", meaning(),
                                         to_string(spec.kv_scale)));
    check_dtype(named, DType::fp32);
    if (named.tensor.rank != rank)
        refuse(named.part("rank"), std::to_string(named.tensor.rank),
               fmt::format("{}: {}, since the spec's kv_scale is {}", rank, meaning(),
                           to_string(spec.kv_scale)));
    for (int axis = 0; axis < rank; ++axis) {
        const std::int64_t wanted =
            axis < outer ? cache.extent(axis) : ceil_div(cache.extent(outer), kScaleBlock);
        if (named.extent(axis) == wanted) continue;
        refuse(named.at("shape", axis), std::to_string(named.extent(axis)),
               axis < outer ? fmt::format("{} ({})", wanted, cache.at("shape", axis))
                            : fmt::format("{} (blocks of {} of the {} columns of {})", wanted, kScaleBlock,
                                          cache.extent(outer), cache.text()));
    }
    check_memory(named, size_of(DType::fp32));
}

Expected key_columns(const AttentionSpec& spec, const Named& position) {
    if (!is_latent(spec)) return {spec.head_dim_qk, "head_dim_qk"};
    if (position.present() || spec.head_dim_kpe == 0) return {spec.head_dim_ckv, "head_dim_ckv"};
    return {spec.head_dim_ckv + spec.head_dim_kpe, "head_dim_ckv + head_dim_kpe"};
}

Expected stored_columns(const AttentionSpec& spec, const Named& position) {
    if (is_latent(spec) && spec.kv_scale == KvScale::block128) return {spec.head_dim_ckv, "head_dim_ckv"};
    return key_columns(spec, position);
}

Tensor workspace_tensor(void* data, std::int64_t bytes) {
    return Tensor::contiguous(data, DType::int32, {bytes / size_of(DType::int32)});
}

void check_output_elements(const Named& named) {
    if (!may_overlap_itself(named.tensor)) return;
    for (int axis = 0; axis < named.tensor.rank; ++axis) {
        if (named.extent(axis) > 1 && named.stride(axis) == 0) {
            refuse(named.at("strides", axis), "0",
                   "a stride above 0: an output's elements do not share memory");
        }
    }
    std::string strides;
    for (int axis = 0; axis < named.tensor.rank; ++axis) {
        strides += (axis == 0 ? "" : ", ") + std::to_string(named.stride(axis));
    }
    refuse(named.part("strides"), strides, "strides under which no two elements of an output share memory");
}

void refuse_overlap(const Named& output, const Named& other) {
    if (!may_overlap(output.tensor, other.tensor)) return;
    refuse(output.text(), fmt::format("memory that overlaps {}", other.text()),
           "memory that no other tensor uses");
}

bool is_same_view(const Named& a, const Named& b) {
    bool same =
        a.tensor.data == b.tensor.data && a.tensor.dtype == b.tensor.dtype && a.tensor.rank == b.tensor.rank;
    for (int axis = 0; same && axis < a.tensor.rank; ++axis) {
        same = a.extent(axis) == b.extent(axis) && (a.extent(axis) <= 1 || a.stride(axis) == b.stride(axis));
    }
    return same;
}

}  // namespace attnsmith::problem
