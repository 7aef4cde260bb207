#include "c_api/request.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "c_api/arguments.hpp"
#include "problem/built.hpp"
#include "problem/request/request_fields.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::c_api {
namespace {

// A number of the header and what it stands for.
template <typename Value>
struct Choice {
    std::int32_t number;
    Value value;
};

constexpr Choice<Op> kOps[] = {{ATTNSMITH_OP_ATTENTION, Op::attention},
                               {ATTNSMITH_OP_MLA, Op::mla},
                               {ATTNSMITH_OP_MERGE, Op::merge},
                               {ATTNSMITH_OP_APPEND, Op::append}};
constexpr Choice<DType> kDTypes[] = {
    {0, DType::bf16}, {ATTNSMITH_FP16, DType::f16}, {ATTNSMITH_BF16, DType::bf16}};
constexpr Choice<DType> kIndexDTypes[] = {
    {0, DType::i32}, {ATTNSMITH_INT32, DType::i32}, {ATTNSMITH_INT64, DType::i64}};
constexpr Choice<Mask> kMasks[] = {{ATTNSMITH_MASK_FULL, Mask::full}, {ATTNSMITH_MASK_CAUSAL, Mask::causal}};
constexpr Choice<KvStorage> kKvStorages[] = {{ATTNSMITH_KV_DENSE, KvStorage::dense},
                                             {ATTNSMITH_KV_RAGGED, KvStorage::ragged},
                                             {ATTNSMITH_KV_PAGED, KvStorage::paged}};
constexpr Choice<PageOrder> kPageOrders[] = {{ATTNSMITH_PAGES_NHD, PageOrder::NHD},
                                             {ATTNSMITH_PAGES_HND, PageOrder::HND}};
constexpr Choice<Precision> kPrecisions[] = {{ATTNSMITH_PRECISION_DEFAULT, Precision::standard},
                                             {ATTNSMITH_PRECISION_HIGH, Precision::high}};
constexpr Choice<Consistency> kConsistencies[] = {{ATTNSMITH_CONSISTENCY_DEFAULT, Consistency::standard},
                                                  {ATTNSMITH_CONSISTENCY_BITWISE, Consistency::bitwise}};

template <typename Value>
std::string accepted_text(std::span<const Choice<Value>> choices) {
    std::vector<std::string> texts;
    for (const Choice<Value>& choice : choices) {
        texts.push_back(fmt::format("{} ({})", choice.number, to_string(choice.value)));
    }
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    return problem::join_or(views);
}

template <typename Value>
Value choose(std::string_view name, std::string_view field, std::int32_t number,
             std::span<const Choice<Value>> choices) {
    for (const Choice<Value>& choice : choices) {
        if (choice.number == number) return choice.value;
    }
    refuse(fmt::format("{}.{}", name, field), std::to_string(number), accepted_text(choices));
}

// The number of a value: of two the later, since the first of dtypes is 0, which only stands for a default.
template <typename Value>
std::int32_t number_of(Value value, std::span<const Choice<Value>> choices) {
    for (auto choice = choices.rbegin(); choice != choices.rend(); ++choice) {
        if (choice->value == value) return choice->number;
    }
    return 0;
}

// A bound that `has` does not switch on would be ignored in silence.
std::optional<std::int64_t> window(std::string_view name, std::string_view field, std::int32_t has,
                                   std::int64_t bound) {
    if (flag(name, fmt::format("has_{}", field), has)) return bound;
    if (bound == 0) return std::nullopt;
    refuse(fmt::format("{}.{}", name, field), fmt::format("{} with has_{} 0", bound, field),
           fmt::format("has_{} 1, or 0 for no bound on this side", field));
}

std::optional<double> factor(double value) { return value == 0 ? std::nullopt : std::optional(value); }

}  // namespace

AttentionSpec read_spec(const attnsmith_spec* given, std::string_view name) {
    const attnsmith_spec c = read_struct(given, name);
    AttentionSpec spec;
    spec.op = choose<Op>(name, "op", c.op, kOps);
    if (c.dtype == ATTNSMITH_FP32) problem::check_built(DType::f32);
    spec.dtype = choose<DType>(name, "dtype", c.dtype, kDTypes);
    spec.head_dim_qk = c.head_dim_qk;
    spec.head_dim_vo = c.head_dim_vo;
    spec.q_heads = c.q_heads;
    spec.kv_heads = c.kv_heads;
    spec.mask = choose<Mask>(name, "mask", c.mask, kMasks);
    spec.window_left = window(name, "window_left", c.has_window_left, c.window_left);
    spec.window_right = window(name, "window_right", c.has_window_right, c.window_right);
    spec.scale = factor(c.scale);
    spec.softcap = factor(c.softcap);
    spec.alibi = flag(name, "alibi", c.alibi);
    spec.sink = flag(name, "sink", c.sink);
    spec.lse = flag(name, "lse", c.lse);
    spec.kv = choose<KvStorage>(name, "kv", c.kv, kKvStorages);
    spec.page_order = choose<PageOrder>(name, "page_order", c.page_order, kPageOrders);
    spec.page_size = c.page_size;
    spec.index_dtype = choose<DType>(name, "index_dtype", c.index_dtype, kIndexDTypes);
    if (c.alignment != 0) spec.alignment = c.alignment;
    spec.precision = choose<Precision>(name, "precision", c.precision, kPrecisions);
    spec.consistency = choose<Consistency>(name, "consistency", c.consistency, kConsistencies);
    return spec;
}

PlanSizes read_sizes(const attnsmith_sizes* given) {
    if (given == nullptr) return {};
    const attnsmith_sizes c = read_struct(given, "sizes");
    const auto or_one = [](std::int64_t size) { return size == 0 ? 1 : size; };
    return {.batch = or_one(c.batch), .q_len = or_one(c.q_len), .kv_len = or_one(c.kv_len)};
}

attnsmith_spec to_c(const AttentionSpec& spec) {
    attnsmith_spec c{};
    c.op = number_of<Op>(spec.op, kOps);
    c.dtype = number_of<DType>(spec.dtype, kDTypes);
    c.mask = number_of<Mask>(spec.mask, kMasks);
    c.kv = number_of<KvStorage>(spec.kv, kKvStorages);
    c.page_order = number_of<PageOrder>(spec.page_order, kPageOrders);
    c.index_dtype = number_of<DType>(spec.index_dtype, kIndexDTypes);
    c.precision = number_of<Precision>(spec.precision, kPrecisions);
    c.consistency = number_of<Consistency>(spec.consistency, kConsistencies);
    c.alignment = spec.alignment;
    c.alibi = spec.alibi ? 1 : 0;
    c.sink = spec.sink ? 1 : 0;
    c.lse = spec.lse ? 1 : 0;
    c.has_window_left = spec.window_left ? 1 : 0;
    c.has_window_right = spec.window_right ? 1 : 0;
    c.window_left = spec.window_left.value_or(0);
    c.window_right = spec.window_right.value_or(0);
    c.head_dim_qk = spec.head_dim_qk;
    c.head_dim_vo = spec.head_dim_vo;
    c.q_heads = spec.q_heads;
    c.kv_heads = spec.kv_heads;
    c.page_size = spec.page_size;
    c.scale = spec.scale.value_or(0);
    c.softcap = spec.softcap.value_or(0);
    return c;
}

attnsmith_sizes to_c(const PlanSizes& sizes) {
    return {.size = 0, .batch = sizes.batch, .q_len = sizes.q_len, .kv_len = sizes.kv_len};
}

}  // namespace attnsmith::c_api
