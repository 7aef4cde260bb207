#include "check/case.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "problem/request/request_fields.hpp"

namespace attnsmith::check {
namespace {

// Of the fields that are nothing by default: windows, scale, softcap and the like.
std::string optional_fields(const AttentionSpec& spec) {
    std::string text;
    for (const problem::RequestField& field : problem::request_fields()) {
        if (!problem::is_absent_by_default(field)) continue;
        const auto value = field.get({spec, {}, {}});
        if (value.is_number_float()) text += fmt::format(" {} {}", field.name, value.get<double>());
        if (value.is_number_integer()) text += fmt::format(" {} {}", field.name, value.get<std::int64_t>());
    }
    return text;
}

std::string flags(const AttentionSpec& spec) {
    std::string text = spec.mask == Mask::causal ? " causal" : "";
    text += optional_fields(spec);
    if (spec.alibi) text += " alibi";
    if (spec.sink) text += " sink";
    if (spec.lse) text += " lse";
    if (spec.o_dtype) text += fmt::format(" to {}", to_string(*spec.o_dtype));
    if (spec.kv_dtype)
        text += fmt::format(" kv {} scales {}", to_string(*spec.kv_dtype), to_string(spec.kv_scale));
    if (spec.alignment != 16) text += fmt::format(" alignment {}", spec.alignment);
    return text;
}

std::string storage(const Case& test) {
    std::string text = test.q_storage == QStorage::dense ? " q dense" : " q ragged";
    if (test.spec.kv != KvStorage::paged)
        return text + (test.spec.kv == KvStorage::dense ? " kv dense" : " kv ragged");
    text += fmt::format(" kv paged {} {}", test.spec.page_size,
                        test.spec.page_order == PageOrder::NHD ? "NHD" : "HND");
    text += test.page_list == PageList::padded ? " padded" : " compressed";
    return text + (test.spare_table_rows ? " by table_rows" : "");
}

// A long batch by its first lengths.
std::string lengths(const std::vector<std::int64_t>& values) {
    const auto shown = std::min<std::size_t>(values.size(), 6);
    return fmt::format("[{}{}]",
                       fmt::join(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(shown), " "),
                       values.size() > shown ? fmt::format(" .. {} in all", values.size()) : "");
}

}  // namespace

std::string to_string(const KernelChoice& choice) {
    return fmt::format("{}{}{}{}x{} stages {}{}{}", choice.wgmma ? "wgmma " : "",
                       choice.shares ? "shares " : "", choice.widened_ahead ? "widened " : "", choice.tile_q,
                       choice.tile_kv, choice.stages,
                       choice.chunk ? fmt::format(" split {}", choice.chunk) : "",
                       choice.ctas ? fmt::format(" over {} CTAs", choice.ctas) : "");
}

std::string Case::describe() const {
    std::string text =
        fmt::format("{}{} {}/{} heads {}/{}{}{}",
                    spec.op != Op::mla     ? ""
                    : layout.latents_apart ? "mla apart "
                                           : "mla ",
                    spec.dtype == DType::fp16 ? "f16" : "bf16", head_dim_qk(spec), head_dim_vo(spec),
                    spec.q_heads, kv_heads(spec), flags(spec), storage(*this));
    text += spec.index_dtype == DType::int64 ? " i64" : " i32";
    if (layout.inline_scales) text += " scales inline";
    if (kernel) text += "; kernel " + to_string(*kernel);
    for (const Step& step : steps)
        text += fmt::format("; q {} kv {}", lengths(step.q_lens), lengths(step.kv_lens));
    return text;
}

PlanSizes Case::plan_sizes() const {
    if (sizes) return *sizes;
    const Step& first = steps.at(0);
    PlanSizes result;
    result.batch = std::max<std::int64_t>(1, static_cast<std::int64_t>(first.q_lens.size()));
    for (const std::int64_t n : first.q_lens) result.q_len = std::max(result.q_len, n);
    for (const std::int64_t n : first.kv_lens) result.kv_len = std::max(result.kv_len, n);
    return result;
}

}  // namespace attnsmith::check
