#include "problem/request/request_fields.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "attnsmith/error.hpp"
#include "problem/json_text.hpp"
#include "problem/limits.hpp"
#include "problem/request/field_kinds.hpp"
#include "problem/request/ops.hpp"
#include "problem/request/sm_list.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::problem {
namespace {

using namespace fields;
using nlohmann::json;
using nlohmann::ordered_json;

// REQUIRES: the op is set already; it is the table's first field.
void set_head_dim(AttentionRequest& request, std::string_view field, const json& value) {
    request.spec.head_dim_vo = as_integer(field, value);
    if (counts("head_dim_qk", request.spec.op)) request.spec.head_dim_qk = request.spec.head_dim_vo;
}

void set_op(AttentionRequest& request, std::string_view field, const json& value) {
    request.spec.op = as_word(field, value, kOpWords);
    op_request(request.spec.op);  // throws for one that is not supported
}

void set_sm(AttentionRequest& request, std::string_view, const json& value) { request.sm = sms_of(value); }
ordered_json get_sm(const AttentionRequest& request) { return request.sm; }

using Spec = AttentionSpec;
using Sizes = PlanSizes;
using Options = ModelOptions;
using CSpec = attnsmith_spec;
using CSizes = attnsmith_sizes;

constexpr RequestField op_field(std::string_view help) {
    RequestField field = word_field<&Spec::op, &CSpec::op, kOpWords>("op", help);
    field.set = set_op;
    return field;
}

void check_alignment(AttentionRequest& request, std::string_view field) {
    const int alignment = request.spec.alignment;
    if (alignment == 16 || alignment == 8 || alignment == 4 || alignment == 2) return;
    throw InvalidRequest(std::string(field), std::to_string(alignment), "16, 8, 4 or 2 bytes");
}

constexpr RequestField alignment_field(std::string_view name, std::string_view help) {
    RequestField field =
        value_field<&Spec::alignment, &CSpec::alignment, as_alignment>(FieldType::integer, name, help);
    field.check = check_alignment;
    return field;
}

// No chunks, which 0 means as well: a chunk that reaches past the longest sequence hides nothing.
void check_chunk(AttentionRequest& request, std::string_view field) {
    auto& chunk = request.spec.attention_chunk;
    if (chunk && *chunk < 0)
        throw InvalidRequest(std::string(field), std::to_string(*chunk),
                             "a number of tokens from 1, or 0 for no chunks");
    if (chunk && (*chunk == 0 || *chunk >= kMaxLength)) chunk.reset();
}

constexpr RequestField chunk_field(std::string_view name, std::string_view help) {
    RequestField field = value_field<&Spec::attention_chunk, &CSpec::attention_chunk, as_optional_integer>(
        FieldType::integer, name, help);
    field.check = check_chunk;
    return field;
}

// Longer blocks than the longest sequence have the same keys as one of its length.
void check_causal_block(AttentionRequest& request, std::string_view field) {
    auto& block = request.spec.causal_block;
    if (block == 0) block.reset();  // a C struct's, and other languages', word for none
    if (block && *block < 1)
        throw InvalidRequest(std::string(field), std::to_string(*block),
                             "a number of tokens from 1; nothing or 0 for a mask that ends at each query");
    if (block) block = std::min(*block, kMaxLength);
}

constexpr RequestField causal_block_field(std::string_view name, std::string_view help) {
    RequestField field = value_field<&Spec::causal_block, &CSpec::causal_block, as_optional_integer>(
        FieldType::integer, name, help);
    field.check = check_causal_block;
    return field;
}

constexpr RequestField kFields[] = {
    op_field("what is computed"),
    choice<&Spec::dtype, &Options::dtype>(word_field<&Spec::dtype, &CSpec::dtype, kFloatDTypeWords>(
        "dtype", "element type of q, k and v, and of o unless o_dtype is given")),
    {.name = "head_dim",
     .type = FieldType::integer,
     .help = "head dimension of q, k, v and o: a multiple of 8 from 8 to 512",
     .set = set_head_dim},
    integer_field<&Spec::head_dim_qk, &CSpec::head_dim_qk>(
        "head_dim_qk", "head dimension of q and k, where that of v and o differs"),
    count_field<&Spec::head_dim_vo, &CSpec::head_dim_vo>(
        "head_dim_vo", "head dimension of v and o (default: that of q and k)"),
    integer_field<&Spec::head_dim_ckv, &CSpec::head_dim_ckv>(
        "head_dim_ckv", "of op mla and append: columns of the latent and of o, a multiple of 64 to 512"),
    integer_field<&Spec::head_dim_kpe, &CSpec::head_dim_kpe>(
        "head_dim_kpe", "of latents: columns of the rotary position, 0 or a multiple of 8 to 64"),
    integer_field<&Spec::q_heads, &CSpec::q_heads>("q_heads", "query heads"),
    count_field<&Spec::kv_heads, &CSpec::kv_heads>(
        "kv_heads", "key/value heads, a divisor of q_heads (default: q_heads; of op mla 1)"),
    word_field<&Spec::mask, &CSpec::mask, kMaskWords>("mask",
                                                      "full, or causal: the last query sees the last key"),
    window_field<&Spec::window_left, &CSpec::window_left, &CSpec::has_window_left>(
        "window_left", "keys seen before the query's own (default: all); a sliding_window of W is W - 1"),
    window_field<&Spec::window_right, &CSpec::window_right, &CSpec::has_window_right>(
        "window_right", "keys seen after the query's own (default: all)"),
    chunk_field("attention_chunk",
                "tokens: a query sees the keys of its own chunk alone; 0 is none (default: none)"),
    causal_block_field(
        "causal_block",
        "tokens, from 1: a query of a causal mask sees its whole block (default: up to itself)"),
    factor_field<&Spec::scale, &CSpec::scale>(
        "scale", "factor on q k^T (default 1/sqrt(head_dim_qk); op mla has none)"),
    factor_field<&Spec::softcap, &CSpec::softcap>(
        "softcap", "logits become softcap * tanh(logit / softcap) (default: off)"),
    boolean_field<&Spec::alibi, &CSpec::alibi>("alibi",
                                               "add slope[q_head] * (key position - query position)"),
    boolean_field<&Spec::sink, &CSpec::sink>("sink", "add exp(sink[q_head]) to each row's denominator"),
    choice<&Spec::lse, &Options::lse>(
        boolean_field<&Spec::lse, &CSpec::lse>("lse", "also write the log-sum-exp of each row")),
    choice<&Spec::kv, &Options::kv>(
        word_field<&Spec::kv, &CSpec::kv, kKvStorageWords>("kv", "how keys and values are stored")),
    of_pages(choice<&Spec::page_order, &Options::page_order>(
        word_field<&Spec::page_order, &CSpec::page_order, kPageOrderWords>(
            "page_order", "order of a page's axes, of paged kv"))),
    of_pages(choice<&Spec::page_size, &Options::page_size>(
        integer_field<&Spec::page_size, &CSpec::page_size>("page_size", "tokens a page, of paged kv"))),
    choice<&Spec::index_dtype, &Options::index_dtype>(
        word_field<&Spec::index_dtype, &CSpec::index_dtype, kIndexDTypeWords>(
            "index_dtype", "type of indptrs, lengths and page tables")),
    choice<&Spec::alignment, &Options::alignment>(
        alignment_field("alignment", "bytes that every base and stride is a multiple of: 16, 8, 4 or 2")),
    choice<&Spec::o_dtype, &Options::o_dtype>(word_field<&Spec::o_dtype, &CSpec::o_dtype, kOutputDTypeWords>(
        "o_dtype", "element type of o: that of q, k and v (the default), or fp32, not rounded")),
    choice<&Spec::kv_dtype, &Options::kv_dtype>(word_field<&Spec::kv_dtype, &CSpec::kv_dtype, kKvDTypeWords>(
        "kv_dtype", "element type of k and v: that of q (the default), or e4m3 or e5m2")),
    choice<&Spec::kv_scale, &Options::kv_scale>(word_field<&Spec::kv_scale, &CSpec::kv_scale, kKvScaleWords>(
        "kv_scale", "what stored keys and values are multiplied by, of a kv_dtype of 8 bits")),
    choice<&Spec::precision, &Options::precision>(
        word_field<&Spec::precision, &CSpec::precision, kPrecisionWords>(
            "precision", "default, or high: products and probabilities stay in fp32")),
    choice<&Spec::consistency, &Options::consistency>(
        word_field<&Spec::consistency, &CSpec::consistency, kConsistencyWords>(
            "consistency", "default, or bitwise: a row's bits depend on neither batch nor phase")),
    append_choice<&Spec::slots, &Options::slots>(word_field<&Spec::slots, &CSpec::slots, kSlotsWords>(
        "slots", "of op append: mapping: a slot for each token; table: pages, and lengths after the append")),
    word_field<&Spec::rope, &CSpec::rope, kRopeWords>(
        "rope", "of op append: columns rotated: none, half: half of them apart, or interleaved: neighbours"),
    integer_field<&Spec::rotary_dim, &CSpec::rotary_dim>(
        "rotary_dim", "of a rope: the first columns, which are rotated (default 0: all of the head's)"),
    append_choice<&Spec::rope_table, &Options::rope_table>(
        word_field<&Spec::rope_table, &CSpec::rope_table, kRopeTableWords>(
            "rope_table", "of a rope: cos_sin: of each position; or frequencies, in radians a position")),
    factor_field<&Spec::rope_factor, &CSpec::rope_factor>(
        "rope_factor", "of frequencies: what cosines and sines are multiplied by (default 1)"),
    boolean_field<&Spec::q_norm, &CSpec::q_norm>(
        "q_norm", "of op append: RMS norm of each head of q, with weights, before the rope"),
    boolean_field<&Spec::k_norm, &CSpec::k_norm>(
        "k_norm", "of op append: the same of k, or of a latent's head_dim_ckv columns"),
    boolean_field<&Spec::v_norm, &CSpec::v_norm>("v_norm", "of op append: the same of v, without weights"),
    factor_field<&Spec::norm_eps, &CSpec::norm_eps>("norm_eps",
                                                    "of norms: added to the mean of squares (default 1e-6)"),
    append_choice<&Spec::q_dtype, &Options::q_dtype>(
        word_field<&Spec::q_dtype, &CSpec::q_dtype, kKvDTypeWords>(
            "q_dtype", "of op append: element type of the q that is written: dtype's, e4m3 or e5m2")),
    append_choice<&Spec::check_slots, &Options::check_slots>(
        boolean_field<&Spec::check_slots, &CSpec::check_slots>(
            "check_slots", "of slots mapping: the status tells of two tokens of one launch with one slot")),
    size<&Sizes::batch, &Options::batch>(
        integer_field<&Sizes::batch, &CSizes::batch>("batch", "sequences to plan for")),
    size<&Sizes::q_len, &Options::q_len>(
        integer_field<&Sizes::q_len, &CSizes::q_len>("q_len", "queries of the longest sequence to plan for")),
    size<&Sizes::kv_len, &Options::kv_len>(
        integer_field<&Sizes::kv_len, &CSizes::kv_len>("kv_len", "keys of the longest sequence to plan for")),
    {.name = "sm",
     .type = FieldType::sm_list,
     .help = "compute capabilities, e.g. 80,90; all, or native: the GPU that is present (the default)",
     .set = set_sm,
     .get = get_sm,
     .role = FieldRole::device},
};

}  // namespace

std::span<const RequestField> request_fields() { return kFields; }

bool counts(std::string_view name, Op op) {
    const auto fields = op_request(op).fields;
    return std::ranges::find(fields, name) != fields.end();
}

bool counts(std::string_view name, const AttentionSpec& spec) {
    if (!counts(name, spec.op)) return false;
    const OpRequest& op = op_request(spec.op);
    return op.counts == nullptr || op.counts(name, spec);
}

const char* leading_head_dim(Op op) {
    return counts("head_dim_qk", op)   ? "head_dim_qk"
           : counts("head_dim_vo", op) ? "head_dim_vo"
                                       : "head_dim_ckv";
}

bool is_of_spec(const RequestField& field) {
    return field.role == FieldRole::attention || field.role == FieldRole::choice;
}

bool is_absent_by_default(const RequestField& field) {
    return is_of_spec(field) && field.get != nullptr && field.get(AttentionRequest{}).is_null();
}

void check_each_field(AttentionRequest& request) {
    for (const RequestField& field : request_fields()) {
        if (field.check != nullptr && counts(field.name, request.spec)) field.check(request, field.name);
    }
}

std::size_t hash_of(const AttentionSpec& spec) {
    const AttentionRequest request{spec, {}, {}};
    std::uint64_t hash = 0;
    for (const RequestField& field : request_fields()) {
        if (field.bits == nullptr || !is_of_spec(field)) continue;
        hash = (hash ^ field.bits(request)) * 0x9e3779b97f4a7c15U;  // the golden ratio spreads small numbers
        hash ^= hash >> 32;
    }
    return hash;
}

void refuse_other_fields(const AttentionRequest& request) {
    const AttentionRequest defaults;
    const std::string leading = leading_head_dim(request.spec.op);
    const AttentionSpec& spec = request.spec;
    const OpRequest& op = op_request(spec.op);
    const std::string_view form = op.form == nullptr ? "" : op.form(spec);
    const std::string head_dim = counts("head_dim", spec) ? fmt::format("head_dim or {}", leading) : "";
    std::vector<std::string_view> taken;
    for (const RequestField& field : request_fields()) {
        if (!is_of_spec(field) || field.name == "op" || !counts(field.name, spec)) continue;
        if (field.name == "head_dim")
            taken.push_back(head_dim);
        else if (!head_dim.ends_with(field.name))
            taken.push_back(field.name);
    }
    for (const RequestField& field : request_fields()) {
        if (field.get == nullptr || counts(field.name, spec)) continue;
        const ordered_json value = field.get(request);
        if (value == field.get(defaults)) continue;
        throw InvalidRequest(
            std::string(field.name), value.is_string() ? value.get<std::string>() : describe(value),
            fmt::format("nothing, with op {}{}: it takes {}", to_string(spec.op), form, join_and(taken)));
    }
}

std::string help_of(const RequestField& field) {
    if (field.name != "op") return std::string(field.help);
    std::string text;
    for (const std::string_view word : kOpWords.names()) {
        const std::string_view help = op_request(kOpWords.parse("op", word)).help;
        text += fmt::format("{}{}{}{}", text.empty() ? "" : "; ", word, help.empty() ? "" : ": ", help);
    }
    return text;
}

const RequestField* find_field(std::string_view name) {
    const auto found = std::ranges::find(kFields, name, &RequestField::name);
    return found == std::end(kFields) ? nullptr : found;
}

}  // namespace attnsmith::problem
