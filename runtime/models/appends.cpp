#include "models/appends.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "problem/json_text.hpp"

namespace attnsmith::problem {
namespace {

// RMS norms of each head's row, before it is rotated.
enum class Norms : std::uint8_t { without, by_field, of_q_and_k, of_q_k_and_v };

struct KnownType {
    std::string_view name;
    Rope rope;
    double rotated = 1.0;  // the part of the columns, where the config does not say it
    Norms norms = Norms::without;
    double norm_eps = 1e-6;  // where the config does not say it
};

using enum Rope;
using enum Norms;

// As the published code of each type does it. Of latents, the columns of the position.
constexpr KnownType kKnown[] = {
    {"apertus", half, 1.0, of_q_and_k, 1e-5},
    {"arcee", half},
    {"baichuan", half},
    {"bitnet", half},
    {"bloom", none},
    {"codegen", interleaved},
    {"cohere", interleaved},
    {"cohere2", interleaved},
    {"cwm", half},
    {"deepseek", half},
    {"deepseek_v2", interleaved},
    {"deepseek_v3", interleaved},
    {"deepseek_v32", interleaved},
    {"dots1", half, 1.0, of_q_and_k},
    {"ernie4_5", interleaved},
    {"ernie4_5_moe", interleaved},
    {"exaone", half},
    {"falcon", half},
    {"flex_olmo", half},
    {"gemma", half},
    {"gemma2", half},
    {"gemma3_text", half, 1.0, of_q_and_k},
    {"gemma3n_text", half, 1.0, of_q_k_and_v},
    {"gemma4_text", half, 1.0, of_q_k_and_v},
    {"glm", interleaved, 0.5},
    {"glm4", interleaved, 0.5},
    {"glm4_moe", half, 0.5, by_field, 1e-5},
    {"glm4_moe_lite", interleaved},
    {"glm_moe_dsa", interleaved},
    {"gpt2", none},
    {"gpt_bigcode", none},
    {"gpt_neo", none},
    {"gpt_neox", half, 0.25},
    {"gpt_oss", half},
    {"gptj", interleaved},
    {"granite", half},
    {"granitemoe", half},
    {"granitemoeshared", half},
    {"helium", interleaved},
    {"hy_v3", half, 1.0, of_q_and_k, 1e-5},
    {"hyperclovax", half},
    {"internlm2", half},
    {"internlm3", half},
    {"jais", none},
    {"jais2", half},
    {"jamba", none},
    {"jetmoe", half},
    {"kimi_k2", interleaved},
    {"lfm2", half, 1.0, of_q_and_k, 1e-5},
    {"lfm2_moe", half, 1.0, of_q_and_k, 1e-5},
    {"llama", half},
    {"mellum", half, 1.0, of_q_and_k},
    {"minicpm", half},
    {"minicpm3", half},
    {"ministral", half},
    {"ministral3", half},
    {"mistral", half},
    {"mixtral", half},
    {"mpt", none},
    {"nemotron", half, 0.5},
    {"nemotron_h", none},
    {"olmo", half},
    {"olmo2", half},
    {"olmo3", half},
    {"olmoe", half},
    {"opt", none},
    {"phi", half, 0.5},
    {"phi3", half},
    {"phi4_multimodal", half},
    {"phimoe", half},
    {"qwen2", half},
    {"qwen2_moe", half},
    {"qwen3", half, 1.0, of_q_and_k},
    {"qwen3_moe", half, 1.0, of_q_and_k},
    {"qwen3_next", half, 0.25, of_q_and_k},
    {"seed_oss", half},
    {"stablelm", half, 0.25},
    {"starcoder2", half},
    {"vaultgemma", half},
    {"Yi", half},
    {"youtu", interleaved},
    {"zamba", none},
};

struct Remark {
    std::string_view type, text;
};

constexpr std::string_view kThreePositions = "a position of three numbers (M-RoPE) is not supported";
constexpr std::string_view kNormBehind = "a norm of q and k behind their rotation is not supported";
// The published code of other types rotates neighbours in any case.
constexpr std::string_view kReadRopeInterleave[] = {"deepseek_v3", "glm4_moe_lite", "kimi_k2", "youtu"};

constexpr Remark kRefused[] = {
    {"ernie4_5_vl_moe_text", kThreePositions},
    {"glm4v_moe_text", kThreePositions},
    {"glm4v_text", kThreePositions},
    {"glm_ocr_text", kThreePositions},
    {"hunyuan_v1_dense", kNormBehind},
    {"hunyuan_v1_moe", kNormBehind},
    {"hunyuan_vl_text", kNormBehind},
    {"llama4_text", kNormBehind},
    {"nanochat", kNormBehind},
    {"paddleocr_vl_text", kThreePositions},
    {"qwen2_5_omni_text", kThreePositions},
    {"qwen2_5_vl", kThreePositions},
    {"qwen2_5_vl_text", kThreePositions},
    {"qwen2_vl", kThreePositions},
    {"qwen2_vl_text", kThreePositions},
    {"qwen3_5_moe_text", kThreePositions},
    {"qwen3_5_text", kThreePositions},
    {"qwen3_omni_moe_text", kThreePositions},
    {"qwen3_vl_moe_text", kThreePositions},
    {"qwen3_vl_text", kThreePositions},
};

constexpr std::string_view kOnePlus =
    "append: the model's norms multiply by 1 + weight: give q_norm_weight and k_norm_weight so";
constexpr std::string_view kNormBefore =
    "append: the model's norm of q and k is of all heads together, and is done before the append";
constexpr std::string_view kZeros =
    "append: layers that rotate a part of the columns take a rope_table with a cosine of 1 and a sine of 0 "
    "for the others";

constexpr Remark kNotes[] = {
    {"flex_olmo", kNormBefore}, {"gemma3_text", kOnePlus}, {"gemma4_text", kZeros},  {"olmo2", kNormBefore},
    {"olmo3", kNormBefore},     {"olmoe", kNormBefore},    {"qwen3_next", kOnePlus},
};

std::string_view remark_on(std::string_view type, const Remark* begin, const Remark* end) {
    const Remark* const found = std::find_if(begin, end, [&](const Remark& one) { return one.type == type; });
    return found == end ? std::string_view() : found->text;
}

// Columns of a head that are rotated: those that the config says, or the part that it or the type's code
// does.
std::int64_t rotary_dim(ModelReader& model, const KnownType& known, std::int64_t columns) {
    // Gemma 4's proportional rotation divides all columns into halves, of which some have no angle.
    if (known.name == "gemma4_text") return columns;
    if (const auto given = model.count({"rotary_dim"})) return *given;
    constexpr std::int64_t kOfGptj = 64;
    if (known.name == "gptj" || known.name == "codegen") return kOfGptj;
    const ModelReader::Names names = {"rope_scaling.partial_rotary_factor",
                                      "rope_parameters.partial_rotary_factor", "partial_rotary_factor",
                                      "rotary_pct"};
    const double part = model.positive(names).value_or(known.rotated);
    const double rotated = static_cast<double>(columns) * part;
    // None would be taken for all.
    if (part > 1.0 || rotated < 1.0) {
        const auto stated = model.find(names);
        throw InvalidRequest(
            stated ? std::string(stated->field) : "head_dim", fmt::format("{}", stated ? part : columns),
            fmt::format("a part of the {} columns of a head: a number up to 1, and at least one column",
                        columns));
    }
    return static_cast<std::int64_t>(rotated);
}

// Cohere 2 has positions in the layers with a window alone.
bool rotates(const KnownType& known, const LayerKind& kind, const AttentionSpec& decode) {
    return known.rope != none && !decode.alibi && (known.name != "cohere2" || !kind.global);
}

// The same layout of the cache, and of latents the same columns.
AttentionSpec stored_as(const AttentionSpec& decode, const ModelOptions& options) {
    AttentionSpec spec{.op = Op::append, .dtype = decode.dtype};
    spec.head_dim_qk = decode.head_dim_qk, spec.head_dim_vo = decode.head_dim_vo;
    spec.head_dim_ckv = decode.head_dim_ckv, spec.head_dim_kpe = decode.head_dim_kpe;
    spec.q_heads = decode.q_heads, spec.kv_heads = decode.kv_heads;
    spec.kv = decode.kv, spec.page_size = decode.page_size, spec.page_order = decode.page_order;
    spec.index_dtype = decode.index_dtype, spec.alignment = decode.alignment;
    spec.kv_dtype = decode.kv_dtype, spec.kv_scale = decode.kv_scale;
    spec.slots = options.slots.value();
    spec.q_dtype = options.q_dtype;
    spec.check_slots = options.check_slots;
    return spec;
}

void set_norms(ModelReader& model, const KnownType& known, AttentionSpec& spec,
               std::vector<std::string>& notes) {
    const bool given = known.norms == by_field && model.is_true({"use_qk_norm"});
    spec.q_norm = spec.k_norm = given || known.norms == of_q_and_k || known.norms == of_q_k_and_v;
    spec.v_norm = known.norms == of_q_k_and_v;
    if (!spec.k_norm) return;
    spec.norm_eps = model.positive({"rms_norm_eps", "norm_eps"});
    if (spec.norm_eps) return;
    spec.norm_eps = known.norm_eps;
    notes.push_back(
        fmt::format("append: the config says no rms_norm_eps; the norms of q and k have {}, the "
                    "default of {}",
                    known.norm_eps, known.name));
}

// The field that turns on a norm that is none of the kernel's.
std::string other_norm(ModelReader& model, const KnownType& known) {
    if (known.norms != without) return "";
    for (const std::string_view name : {"qk_layernorm", "use_qk_norm", "qk_norm"}) {
        if (model.is_true({name})) return model.find({name})->field;
    }
    return "";
}

}  // namespace

LayerAppend append_of(ModelReader& model, const LayerKind& kind, const AttentionSpec& decode,
                      const ModelOptions& options) {
    LayerAppend append{.spec = stored_as(decode, options), .notes = {}, .refusal = {}};
    const std::string_view type = model.model_type();
    append.refusal = remark_on(type, std::begin(kRefused), std::end(kRefused));
    if (!append.refusal.empty()) return append;
    const auto* known = std::ranges::find(kKnown, type, &KnownType::name);
    if (known == std::end(kKnown)) {
        append.refusal = fmt::format(
            "how {} rotates and norms new keys is not known to this version: ask for op append by itself, "
            "with its rope and norms",
            type.empty() ? "a model without a model_type"
                         : fmt::format("model_type {}", field_name(std::string(type))));
        return append;
    }
    const bool latent = decode.op == Op::mla;
    if (const std::string field = other_norm(model, *known); !field.empty()) {
        append.refusal =
            fmt::format("a norm of q and k that is no RMS norm of each head is not supported ({})", field);
        return append;
    }
    if (rotates(*known, kind, decode)) {
        const bool may_say = std::ranges::find(kReadRopeInterleave, type) != std::end(kReadRopeInterleave);
        const bool in_halves = may_say && !model.boolean({"rope_interleave"}).value_or(true);
        append.spec.rope = latent && in_halves ? half : known->rope;
        if (append.spec.rope != Rope::none) append.spec.rope_table = options.rope_table.value_or(RopeTable{});
        append.spec.rotary_dim = latent ? decode.head_dim_kpe : rotary_dim(model, *known, decode.head_dim_qk);
    }
    if (latent)
        append.spec.k_norm = true;  // with the class's own epsilon, which is the default
    else
        set_norms(model, *known, append.spec, append.notes);
    if (const std::string_view note = remark_on(type, std::begin(kNotes), std::end(kNotes)); !note.empty())
        append.notes.emplace_back(note);
    if (const auto shared = model.integer({"num_kv_shared_layers"}); shared && *shared > 0)
        append.notes.push_back(fmt::format(
            "append: the last {} layers of the model have no keys and values of their own: theirs is an "
            "append of q alone",
            *shared));
    if (model.positive({"clip_qkv", "attn_config.clip_qkv"}))
        append.notes.emplace_back(
            "append: the model clips q, k and v (clip_qkv), which is done before the append");
    return append;
}

}  // namespace attnsmith::problem
