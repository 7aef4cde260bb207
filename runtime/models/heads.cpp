#include "models/heads.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <string_view>

#include "attnsmith/error.hpp"

namespace attnsmith::problem {
namespace {

// Models that leave the logits as they are, by their class and not by a field.
constexpr std::string_view kUnscaled[] = {"gpt_neo", "gemma3n_text", "gemma4_text"};

using Found = ModelReader::Found;
using Sourced = ModelReader::Sourced;

// What says that one key/value head serves all query heads. Falcon's newer architecture keeps the flag but
// has groups.
std::optional<Found> multi_query(ModelReader& model) {
    const auto type = model.find({"attn_config.attn_type"});
    if (type && model.word({"attn_config.attn_type"}) == "multiquery_attention") return type;
    const bool is_on = model.is_true({"multi_query"}) && !model.is_true({"new_decoder_architecture"});
    return is_on ? model.find({"multi_query"}) : std::nullopt;
}

Sourced kv_heads(ModelReader& model, const Sourced& q_heads, bool global) {
    if (const auto reason = multi_query(model)) {
        model.disregard({"num_key_value_heads", "num_kv_heads", "n_head_kv"});
        return {1, *reason};
    }
    if (model.is_true({"multi_query_attention"})) {
        const Sourced one = {1, *model.find({"multi_query_attention"})};
        return model.sourced_count({"multi_query_group_num"}).value_or(one);
    }
    if (model.has("multi_query_attention")) model.disregard({"multi_query_group_num"});
    const bool own_globals =
        model.is_true({"attention_k_eq_v"}) || model.model_type() == "embedding_gemma2_text";
    if (!own_globals && (model.has("attention_k_eq_v") || model.code() == "gemma4_text"))
        model.disregard({"num_global_key_value_heads"});
    if (global && own_globals) {
        if (auto heads = model.sourced_count({"num_global_key_value_heads"})) return *std::move(heads);
    }
    return model
        .sourced_count({"num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "n_kv_head",
                        "kv_n_heads", "attn_config.kv_n_heads", "num_attention_groups"})
        .value_or(q_heads);
}

// Zamba's shared attention works on the hidden states beside the embeddings.
bool has_doubled_input(ModelReader& model) { return model.model_type().starts_with("zamba"); }

Sourced hidden_size(ModelReader& model) {
    return model.required_sourced({"hidden_size", "n_embd", "n_embed", "d_model", "dim"});
}

Sourced head_dim(ModelReader& model, std::int64_t q_heads, bool global) {
    if (global) {
        if (auto given = model.sourced_count({"global_head_dim"})) return *std::move(given);
    }
    if (has_doubled_input(model)) {
        model.disregard({"kv_channels", "attention_hidden_size"});
        if (auto given = model.sourced_count({"attention_head_dim"})) return *std::move(given);
        const Sourced hidden = hidden_size(model);
        return {2 * hidden.number / q_heads, hidden.source};
    }
    if (auto given = model.sourced_count({"head_dim", "attention_head_dim", "kv_channels", "d_kv", "d_head"}))
        return *std::move(given);
    const Sourced hidden = hidden_size(model);
    if (hidden.number % q_heads == 0) return {hidden.number / q_heads, hidden.source};
    throw InvalidRequest(hidden.source.field, std::to_string(hidden.number),
                         fmt::format("a multiple of the {} heads, or a head_dim beside it", q_heads));
}

std::optional<double> scale_of(ModelReader& model, ModelReader::Names names) {
    const auto scale = model.positive(names);
    if (scale) model.derive("scale", names);
    return scale;
}

// What multiplies q k^T, where it is not 1 / sqrt(head_dim).
std::optional<double> logit_scale(ModelReader& model, std::int64_t head_dim_qk) {
    if (std::ranges::find(kUnscaled, model.code()) != std::end(kUnscaled)) {
        model.disregard({"query_pre_attn_scalar"});
        return 1.0;
    }
    if (has_doubled_input(model)) return std::sqrt(2.0 / static_cast<double>(head_dim_qk));
    if (model.model_type() == "grok-1") return scale_of(model, {"attn_output_multiplier"});
    if (const auto scalar = scale_of(model, {"query_pre_attn_scalar"})) return 1.0 / std::sqrt(*scalar);
    if (const auto scale = scale_of(model, {"attention_multiplier", "attn_config.softmax_scale"}))
        return *scale;
    if (!model.boolean({"scale_attn_weights"}).value_or(true)) return 1.0;
    // Jais and BTLM, by their maximal-update parametrisation.
    if (model.is_true({"mup_scale_qk_dot_by_d", "scale_qk_dot_by_d"}))
        return 1.0 / static_cast<double>(head_dim_qk);
    return std::nullopt;
}

// YaRN's mscale as DeepSeek applies it to the softmax, once for q and once for k.
double latent_scale(ModelReader& model, std::int64_t head_dim_qk) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(head_dim_qk));
    const ModelReader::Names names = {"rope_scaling.mscale_all_dim", "rope_parameters.mscale_all_dim"};
    // Mistral 4's class has both numbers where the file has no rotary parameters.
    const bool by_class =
        model.code() == "mistral4" && !model.find({"rope_parameters"}) && !model.find({"rope_scaling"});
    const double all_dim = model.number(names).value_or(by_class ? 1.0 : 0.0);
    const double factor =
        model.positive({"rope_scaling.factor", "rope_parameters.factor"}).value_or(by_class ? 128.0 : 1.0);
    if (all_dim == 0.0 || factor <= 1.0) return scale;
    model.derive("scale", names);
    const double mscale = 0.1 * all_dim * std::log(factor) + 1.0;
    return scale * mscale * mscale;
}

Heads heads_of(ModelReader& model, const Sourced& q_heads, const Sourced& kv_heads,
               const Sourced& head_dim_qk, const Sourced& head_dim_vo) {
    if (q_heads.number % kv_heads.number != 0) {
        throw InvalidRequest(kv_heads.source.field, model.shown(kv_heads.source),
                             fmt::format("a divisor of the {} query heads", q_heads.number));
    }
    model.derive("q_heads", q_heads.source);
    model.derive("kv_heads", kv_heads.source);
    model.derive("head_dim_qk", head_dim_qk.source);
    model.derive("head_dim_vo", head_dim_vo.source);
    model.derive("scale", head_dim_qk.source);  // where nothing else says it
    Heads heads;
    heads.q_heads = q_heads.number;
    heads.kv_heads = kv_heads.number;
    heads.head_dim_qk = head_dim_qk.number;
    heads.head_dim_vo = head_dim_vo.number;
    return heads;
}

// Multi-head latent attention expands its latent into ordinary heads for a prefill.
Heads read_latent_heads(ModelReader& model) {
    const Sourced q_heads = model.query_heads();
    Sourced head_dim_qk = model.required_sourced({"qk_nope_head_dim"});
    head_dim_qk.number += model.required_count({"qk_rope_head_dim"});
    Sourced head_dim_vo;
    if (model.code() == "minicpm3" && !model.has("v_head_dim")) {
        head_dim_vo = hidden_size(model);
        head_dim_vo.number /= q_heads.number;
    } else {
        head_dim_vo = model.required_sourced({"v_head_dim"});
    }
    model.disregard({"num_key_value_heads", "head_dim", "qk_head_dim", "kv_channels"});
    Heads heads = heads_of(model, q_heads, q_heads, head_dim_qk, head_dim_vo);
    heads.latent = true;
    heads.scale = latent_scale(model, heads.head_dim_qk);
    return heads;
}

}  // namespace

Heads read_heads(ModelReader& model, const LayerKind& kind) {
    if (model.count({"kv_lora_rank"})) return read_latent_heads(model);
    const Sourced q_heads = kind.q_heads ? *kind.q_heads : model.query_heads();
    const Sourced kv = kind.kv_heads ? *kind.kv_heads : kv_heads(model, q_heads, kind.global);
    const Sourced head_dim_qk = kind.head_dim ? *kind.head_dim : head_dim(model, q_heads.number, kind.global);
    const Sourced head_dim_vo = model.sourced_count({"v_head_dim"}).value_or(head_dim_qk);
    Heads heads = heads_of(model, q_heads, kv, head_dim_qk, head_dim_vo);
    heads.scale = logit_scale(model, heads.head_dim_qk);
    // Fields that code of the type does not read, and that say the same.
    model.agree({"num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "n_kv_head", "kv_n_heads",
                 "num_attention_groups"},
                heads.kv_heads);
    model.agree({"head_dim", "attention_head_dim", "kv_channels", "d_kv", "d_head", "v_head_dim",
                 "query_pre_attn_scalar"},
                heads.head_dim_qk);
    return heads;
}

Heads divide_heads(Heads heads, std::int64_t gpus) {
    // Where there are more GPUs than key/value heads each head is on several.
    const bool kv_divides =
        gpus > 0 && (heads.kv_heads >= gpus ? heads.kv_heads % gpus == 0 : gpus % heads.kv_heads == 0);
    if (!kv_divides || heads.q_heads % gpus != 0) {
        throw InvalidRequest(
            "tensor_parallel", std::to_string(gpus),
            fmt::format("a number that divides {} query heads, and divides or is a multiple of {} KV heads",
                        heads.q_heads, heads.kv_heads));
    }
    heads.q_heads /= gpus;
    heads.kv_heads = std::max<std::int64_t>(1, heads.kv_heads / gpus);
    return heads;
}

}  // namespace attnsmith::problem
