#include "problem/model/heads.hpp"

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

// One key/value head for all query heads. Falcon's newer architecture keeps the flag but has groups.
bool is_multi_query(ModelReader& model) {
    if (model.word({"attn_config.attn_type"}) == "multiquery_attention") return true;
    return model.is_true({"multi_query"}) && !model.is_true({"new_decoder_architecture"});
}

std::int64_t kv_heads(ModelReader& model, std::int64_t q_heads, bool global) {
    if (is_multi_query(model)) {
        model.disregard({"num_key_value_heads", "num_kv_heads", "n_head_kv"});
        return 1;
    }
    if (model.is_true({"multi_query_attention"})) return model.count({"multi_query_group_num"}).value_or(1);
    if (model.has("multi_query_attention")) model.disregard({"multi_query_group_num"});
    const bool own_globals = model.is_true({"attention_k_eq_v"});
    if (!own_globals && (model.has("attention_k_eq_v") || model.model_type() == "gemma4_text"))
        model.disregard({"num_global_key_value_heads"});
    if (global && own_globals) {
        if (const auto heads = model.count({"num_global_key_value_heads"})) return *heads;
    }
    const ModelReader::Names names = {
        "num_key_value_heads", "num_kv_heads",          "n_head_kv", "n_kv_heads", "n_kv_head",
        "kv_n_heads",          "attn_config.kv_n_heads"};
    const std::int64_t heads = model.count(names).value_or(q_heads);
    if (q_heads % heads != 0) {
        // Said here, where the file's own key is known.
        throw InvalidRequest(model.find(names)->field, std::to_string(heads),
                             fmt::format("a divisor of the {} query heads", q_heads));
    }
    return heads;
}

// Zamba's shared attention works on the hidden states beside the embeddings.
bool has_doubled_input(ModelReader& model) { return model.model_type().starts_with("zamba"); }

std::int64_t hidden_size(ModelReader& model) {
    return model.required_count({"hidden_size", "n_embd", "n_embed", "d_model", "dim"});
}

std::int64_t head_dim(ModelReader& model, std::int64_t q_heads, bool global) {
    if (global) {
        if (const auto given = model.count({"global_head_dim"})) return *given;
    }
    if (has_doubled_input(model)) {
        model.disregard({"kv_channels", "attention_hidden_size"});
        return model.count({"attention_head_dim"}).value_or(2 * hidden_size(model) / q_heads);
    }
    if (const auto given = model.count({"head_dim", "attention_head_dim", "kv_channels", "d_kv", "d_head"}))
        return *given;
    const std::int64_t hidden = hidden_size(model);
    if (hidden % q_heads == 0) return hidden / q_heads;
    throw InvalidRequest("hidden_size", std::to_string(hidden),
                         fmt::format("a multiple of the {} heads, or a head_dim beside it", q_heads));
}

// What multiplies q k^T, where it is not 1 / sqrt(head_dim).
std::optional<double> logit_scale(ModelReader& model, std::int64_t head_dim_qk) {
    if (std::ranges::find(kUnscaled, model.model_type()) != std::end(kUnscaled)) {
        model.disregard({"query_pre_attn_scalar"});
        return 1.0;
    }
    if (has_doubled_input(model)) return std::sqrt(2.0 / static_cast<double>(head_dim_qk));
    if (model.model_type() == "grok-1") return model.positive({"attn_output_multiplier"});
    if (const auto scalar = model.positive({"query_pre_attn_scalar"})) return 1.0 / std::sqrt(*scalar);
    if (const auto scale = model.positive({"attention_multiplier", "attn_config.softmax_scale"}))
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
    const double all_dim =
        model.number({"rope_scaling.mscale_all_dim", "rope_parameters.mscale_all_dim"}).value_or(0.0);
    const double factor = model.positive({"rope_scaling.factor", "rope_parameters.factor"}).value_or(1.0);
    if (all_dim == 0.0 || factor <= 1.0) return scale;
    const double mscale = 0.1 * all_dim * std::log(factor) + 1.0;
    return scale * mscale * mscale;
}

// Multi-head latent attention expands its latent into ordinary heads for a prefill.
Heads read_latent_heads(ModelReader& model) {
    Heads heads;
    heads.latent = true;
    heads.q_heads = heads.kv_heads = model.query_heads();
    heads.head_dim_qk =
        model.required_count({"qk_nope_head_dim"}) + model.required_count({"qk_rope_head_dim"});
    heads.head_dim_vo = model.model_type() == "minicpm3" && !model.has("v_head_dim")
                            ? hidden_size(model) / heads.q_heads
                            : model.required_count({"v_head_dim"});
    model.disregard({"num_key_value_heads", "head_dim", "qk_head_dim", "kv_channels"});
    heads.scale = latent_scale(model, heads.head_dim_qk);
    return heads;
}

}  // namespace

Heads read_heads(ModelReader& model, const LayerKind& kind) {
    if (model.count({"kv_lora_rank"})) return read_latent_heads(model);
    Heads heads;
    heads.q_heads = kind.q_heads ? *kind.q_heads : model.query_heads();
    heads.kv_heads = kind.kv_heads ? *kind.kv_heads : kv_heads(model, heads.q_heads, kind.global);
    heads.head_dim_qk = kind.head_dim ? *kind.head_dim : head_dim(model, heads.q_heads, kind.global);
    heads.head_dim_vo = model.count({"v_head_dim"}).value_or(heads.head_dim_qk);
    heads.scale = logit_scale(model, heads.head_dim_qk);
    // Fields that code of the type does not read, and that say the same.
    model.agree({"num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads", "n_kv_head", "kv_n_heads"},
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
