#include "cli/asked/engine_coverage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "attnsmith/error.hpp"
#include "models/coverage/coverage.hpp"
#include "models/options.hpp"
#include "problem/request/problem.hpp"

namespace attnsmith::cli {
namespace {

using nlohmann::json;

struct NamedEngine {
    Engine engine;
    std::string_view name;
};
constexpr NamedEngine kEngines[] = {{Engine::vllm, "vllm"}};

// ---- What vLLM decides

constexpr std::string_view kOfUser[] = {"dtype", "page_size", "kv_dtype", "consistency"};
constexpr std::int64_t kBlockSize = 16;  // vLLM's default, and what its backend needs multiples of
// Columns of the latent caches that vLLM has.
constexpr std::int64_t kLatentColumns[] = {320, 576};
// What vLLM computes by other backends, such as an encoder's attention to sound.
constexpr std::string_view kOfOthers[] = {"encoder_attention", "linear_attention"};
constexpr std::string_view kWordsOfCache =
    "auto, fp8, fp8_e4m3, fp8_e5m2, fp8_per_token_head, or the model's own dtype";
constexpr std::string_view kAuto = "auto";
// e4m3 with an fp32 scale of each head of each token, which follows its columns within the row.
constexpr std::string_view kPerToken = "fp8_per_token_head";
constexpr std::int64_t kScaleBytes = 4;

struct UserWords {
    json options;  // as the library has them
    bool per_token = false;
};

// vLLM's words of kv_dtype. auto is what the model says.
UserWords words_of_user(json options) {
    const auto given = options.find("kv_dtype");
    if (given == options.end()) return {std::move(options)};
    for (const std::string_view word : {kAuto, kPerToken}) {
        if (given->is_array() && std::ranges::find(*given, word) != given->end())
            throw InvalidRequest("kv_dtype", fmt::format("\"{}\" among others", word),
                                 fmt::format("\"{}\" alone, or a list without it", word));
    }
    const bool per_token = *given == kPerToken;
    if (*given == kAuto) options.erase(given);
    if (per_token) options["kv_dtype"] = "e4m3";
    return {std::move(options), per_token};
}

// Without `kv`, decoders are paged, and the keys that a prefill makes of latents are ragged.
json words_of_decoder(json options) {
    options["index_dtype"] = "int32";
    options["page_order"] = "HND";
    if (!options.contains("page_size")) options["page_size"] = kBlockSize;
    return options;
}

// Only the reader's notes say that it assumed the dtype.
bool assumes_dtype(const Coverage& coverage) {
    const auto says_so = [](const std::string& note) {
        return note.starts_with("dtype ") && note.ends_with("planned as bf16");
    };
    return std::ranges::any_of(coverage.attentions, [&](const ModelAttention& attention) {
        return std::ranges::any_of(attention.notes, says_so);
    });
}

// vLLM serves an fp32 encoder in fp16, or in bf16 where its own list of types rules out fp16. The list is not
// known here, so both are asked for.
json words_of_encoder(json options, const Coverage& as_decoder) {
    options["index_dtype"] = "int32";
    options["kv"] = "ragged";
    if (!options.contains("dtype") && assumes_dtype(as_decoder)) options["dtype"] = {"fp16", "bf16"};
    return options;
}

// Where kv is not given, the reader plans dense KV for encoders only.
bool keeps_no_keys(const Coverage& coverage) {
    return std::ranges::any_of(coverage.attentions, [](const ModelAttention& attention) {
        return attention.request.spec.kv == KvStorage::dense;
    });
}

// ---- What vLLM adds

// "full_attention/append (page_size 16)" of "full_attention/decode (page_size 16)".
std::string with_phase(const ModelAttention& attention, std::string_view phase) {
    std::string name = attention.name;
    const std::size_t place = name.rfind("/" + attention.phase);
    return place == name.npos ? name : name.replace(place + 1, attention.phase.size(), phase);
}

ModelAttention added(const ModelAttention& to, std::string_view name, std::string_view phase,
                     const AttentionSpec& spec, const PlanSizes& sizes) {
    ModelAttention attention = to;
    attention.name = with_phase(to, name);
    attention.phase = phase;
    const problem::Problem checked = problem::validate(spec, sizes);
    attention.request.spec = checked.spec;
    attention.request.sizes = checked.sizes;
    return attention;
}

// What writes the cache that `decode` reads. vLLM has rotated and normalised k before, and writes no q. The
// kernel takes slots of int32 and int64: index_dtype is the type of page tables, and this append has none. So
// it keeps its default, as in attnsmith.append().
ModelAttention append_of(const ModelAttention& decode) {
    const AttentionSpec& reads = decode.request.spec;
    AttentionSpec spec{.op = Op::append, .dtype = reads.dtype};
    spec.head_dim_qk = reads.head_dim_qk, spec.head_dim_vo = reads.head_dim_vo;
    spec.head_dim_ckv = reads.head_dim_ckv, spec.head_dim_kpe = reads.head_dim_kpe;
    spec.q_heads = spec.kv_heads = reads.kv_heads;
    spec.kv = reads.kv, spec.page_order = reads.page_order, spec.page_size = reads.page_size;
    spec.kv_dtype = reads.kv_dtype, spec.kv_scale = reads.kv_scale, spec.alignment = reads.alignment;
    spec.slots = Slots::mapping;
    return added(decode, "append", "append", spec, decode.request.sizes);
}

// A prefill of latents attends to a long context in chunks, without a mask; vLLM merges the results. The same
// kernels write the log-sum-exp and leave it out, so there is no request without it.
ModelAttention context_of(const ModelAttention& prefill) {
    AttentionSpec spec = prefill.request.spec;
    spec.mask = Mask::full;
    spec.lse = true;
    return added(prefill, "context", "prefill", spec, prefill.request.sizes);
}

bool is_prefill_of_latents(const ModelAttention& attention) {
    const AttentionSpec& spec = attention.request.spec;
    return spec.op == Op::attention && spec.kv == KvStorage::ragged;
}

// Each query sees all of the encoder's keys, with the heads of the decoder's own attention. Layers with and
// without a window then have the same cross attention.
void add_cross_attention(std::vector<ModelAttention>& attentions) {
    std::vector<ModelAttention> crossing;
    for (const ModelAttention& own : attentions) {
        AttentionSpec spec = own.request.spec;
        spec.mask = Mask::full;
        spec.window_left = spec.window_right = spec.attention_chunk = std::nullopt;
        ModelAttention cross = added(own, own.phase, own.phase, spec, own.request.sizes);
        cross.name = "cross_attention" + cross.name.substr(cross.name.find('/'));
        cross.notes.emplace_back("cross attention is planned with the heads of the decoder's self-attention");
        const auto same = std::ranges::find(crossing, cross.name, &ModelAttention::name);
        if (same == crossing.end())
            crossing.push_back(std::move(cross));
        else
            same->layers += cross.layers;
    }
    std::ranges::move(crossing, std::back_inserter(attentions));
}

// Moves the attentions that `why_not` gives a reason for to what is unsupported.
template <typename WhyNot>
void refuse(Coverage& coverage, WhyNot why_not) {
    std::erase_if(coverage.attentions, [&](ModelAttention& attention) {
        const std::string reason = why_not(attention.request.spec);
        if (!reason.empty()) coverage.unsupported.push_back({attention.name, reason});
        return !reason.empty();
    });
}

std::string why_not_divided(const AttentionSpec& spec) {
    const auto reason = [](std::string_view what) {
        return fmt::format("attention with {} has no context parallelism", what);
    };
    if (spec.window_left || spec.window_right) return reason("windows");
    if (spec.alibi) return reason("ALiBi");
    return spec.sink ? reason("sinks") : "";
}

// A rank has a part of the keys of each request, attends to it with the queries of all ranks, and merges the
// results with attention among the new tokens, all of whose keys it has.
std::vector<ModelAttention> divided(const ModelAttention& decode, std::int64_t ranks) {
    ModelAttention context = decode;
    AttentionSpec& spec = context.request.spec;
    if (spec.op == Op::attention) spec.mask = Mask::full;
    AttentionSpec among = decode.request.spec;
    const AttentionSpec plain;
    among.kv = KvStorage::ragged, among.page_order = plain.page_order, among.page_size = plain.page_size;
    among.kv_dtype = plain.kv_dtype, among.kv_scale = plain.kv_scale, among.alignment = plain.alignment;
    AttentionSpec merge{.op = Op::merge, .dtype = spec.dtype};
    merge.head_dim_vo = spec.head_dim_vo;
    merge.q_heads = spec.q_heads;
    spec.q_heads *= ranks;
    if (spec.op == Op::mla) return {context};
    return {context, added(decode, "new_tokens", decode.phase, among, decode.request.sizes),
            added(decode, "merge", decode.phase, merge, decode.request.sizes)};
}

void divide_contexts(Coverage& coverage, std::int64_t ranks) {
    if (ranks == 1) return;
    refuse(coverage, why_not_divided);
    std::vector<ModelAttention> all;
    for (const ModelAttention& attention : coverage.attentions) {
        if (attention.request.spec.op == Op::append || is_prefill_of_latents(attention)) {
            all.push_back(attention);
        } else if (attention.phase == "decode") {  // a prefill is the same
            std::ranges::move(divided(attention, ranks), std::back_inserter(all));
        }
    }
    coverage.attentions = std::move(all);
}

// Takes the cross attention from what is unsupported. False where there is none, and for a type that the
// reader does not know, whose heads may differ.
bool take_cross_attention(Coverage& coverage) {
    if (std::ranges::find(coverage.warnings, WarningKind::unknown_type, &ModelWarning::kind) !=
        coverage.warnings.end())
        return false;
    return std::erase_if(coverage.unsupported,
                         [](const UnsupportedPart& part) { return part.name == "cross_attention"; }) > 0;
}

// The scales of an fp8 cache: one of K and one of V, or of each head where the model has those. Why the
// backend does not serve the attention; empty: it does.
std::string take_scale(AttentionSpec& spec, bool per_token) {
    if (!is_fp8(spec.kv_dtype.value_or(spec.dtype))) return {};
    if (!per_token) {
        if (spec.kv_scale == KvScale::none) spec.kv_scale = KvScale::tensor;
        if (spec.kv_scale == KvScale::tensor || spec.kv_scale == KvScale::head) return {};
        return fmt::format("vLLM's cache has no kv_scale {}", to_string(spec.kv_scale));
    }
    if (spec.op == Op::mla) return fmt::format("vLLM's latent caches have no kv_dtype {}", kPerToken);
    spec.kv_scale = KvScale::token_head;
    // V and its scale begin where K's end.
    while ((spec.head_dim_qk + kScaleBytes) % spec.alignment != 0) spec.alignment /= 2;
    return {};
}

std::string why_no_latents(const AttentionSpec& spec) {
    const std::int64_t columns = spec.head_dim_ckv + spec.head_dim_kpe;
    if (spec.op != Op::mla || std::ranges::find(kLatentColumns, columns) != std::end(kLatentColumns))
        return {};
    return fmt::format("vLLM has latent caches of {} columns, none of {}", fmt::join(kLatentColumns, " and "),
                       columns);
}

void refuse_page_sizes(const json& options) {
    const auto given = options.find("page_size");
    if (given == options.end()) return;
    for (const json& size : given->is_array() ? *given : json::array({*given})) {
        if (size.is_number_integer() && size.get<std::int64_t>() % kBlockSize != 0)
            throw InvalidRequest("page_size", size.dump(), fmt::format("a multiple of {}", kBlockSize));
    }
}

Coverage coverage_with_cache(std::string_view config_json, const json& options) {
    try {
        return problem::coverage_of_model(config_json, options);
    } catch (const InvalidRequest& error) {
        if (error.field() != "kv_dtype") throw;
        throw InvalidRequest(error.field(), error.value(), std::string(kWordsOfCache));
    }
}

Coverage vllm_coverage(std::string_view config_json, const json& options, std::int64_t context_parallel) {
    const UserWords given = words_of_user(options);
    refuse_page_sizes(options);
    Coverage coverage = coverage_with_cache(config_json, words_of_decoder(given.options));
    if (keeps_no_keys(coverage))
        return problem::coverage_of_model(config_json, words_of_encoder(given.options, coverage));
    std::erase_if(coverage.unsupported, [](const UnsupportedPart& part) {
        return std::ranges::find(kOfOthers, part.name) != std::end(kOfOthers);
    });
    refuse(coverage, why_no_latents);
    refuse(coverage, [&](AttentionSpec& spec) { return take_scale(spec, given.per_token); });
    if (take_cross_attention(coverage)) add_cross_attention(coverage.attentions);
    std::vector<ModelAttention> all;
    for (ModelAttention& attention : coverage.attentions) {
        std::optional<ModelAttention> more;
        if (attention.phase == "decode") more = append_of(attention);
        if (is_prefill_of_latents(attention)) more = context_of(attention);
        all.push_back(std::move(attention));
        if (more) all.push_back(*std::move(more));
    }
    coverage.attentions = std::move(all);
    divide_contexts(coverage, context_parallel);
    return coverage;
}

}  // namespace

std::vector<std::string_view> engine_names() {
    std::vector<std::string_view> names;
    for (const NamedEngine& one : kEngines) names.push_back(one.name);
    return names;
}

std::string_view name_of(Engine engine) {
    return std::ranges::find(kEngines, engine, &NamedEngine::engine)->name;
}

std::optional<Engine> find_engine(std::string_view name) {
    const auto found = std::ranges::find(kEngines, name, &NamedEngine::name);
    if (found == std::end(kEngines)) return std::nullopt;
    return found->engine;
}

bool decides(Engine engine, const problem::RequestField& field) {
    switch (engine) {
        case Engine::vllm:
            return field.role == problem::FieldRole::choice &&
                   std::ranges::find(kOfUser, field.name) == std::end(kOfUser);
    }
    return false;
}

Coverage engine_coverage(Engine engine, std::string_view config_json, const json& options,
                         std::int64_t context_parallel) {
    switch (engine) {
        case Engine::vllm:
            return vllm_coverage(config_json, options, context_parallel);
    }
    return {};
}

}  // namespace attnsmith::cli
