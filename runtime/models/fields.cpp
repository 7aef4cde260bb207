#include "models/fields.hpp"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "problem/json_text.hpp"

namespace attnsmith::problem {
namespace {

// Anywhere in a name, since they are seldom part of another word.
constexpr std::string_view kStems[] = {
    "alibi",        "attend",  "attention", "attn",    "bidirectional", "causal",   "compress",
    "differential", "index_",  "linear_",   "mamba",   "mixer",         "moba",     "position_bias",
    "recurr",       "sliding", "softcap",   "softmax", "sparse",        "sparsity", "window"};

// Whole words of a name, so that "head" is not seen in "overhead" or "k" in "topk".
constexpr std::string_view kWords[] = {
    "att",    "bucket",   "buckets",   "cap",     "chunk",    "chunked",  "chunks",    "cla",    "cross",
    "delta",  "deltanet", "diff",      "dilated", "dilation", "dsa",      "gdn",       "gla",    "global",
    "gqa",    "head",     "heads",     "hybrid",  "indexer",  "kda",      "key",       "keys",   "kv",
    "lambda", "landmark", "landmarks", "latent",  "local",    "logit",    "logits",    "logn",   "lru",
    "lsh",    "mask",     "masked",    "mla",     "mqa",      "nsa",      "pattern",   "prefix", "q",
    "qk",     "qkv",      "queries",   "query",   "rel",      "relative", "retention", "scale",  "scaling",
    "sink",   "sinks",    "slope",     "slopes",  "ssm",      "swa",      "v",         "value",  "values"};

struct DailyLife {
    std::string_view name;             // "rope_*" is every name that begins so, "*_token_id" that ends so
    std::string_view model_type = {};  // the only type that it is so of; empty: any
};

constexpr DailyLife kDailyLife[] = {
    // They concern training, or how a framework computes the same thing.
    {"*dropout"},
    {"*dropout_p"},
    {"*dropout_prob"},
    {"*dropout_rate"},
    {"*pdrop"},
    {"*_attn_implementation"},
    {"_attn_implementation*"},
    {"attn_implementation"},
    {"attn_impl"},
    {"attn_uses_sequence_id"},
    {"attention_in_fp32"},
    {"*softmax_in_fp32"},
    {"reorder_and_upcast_attn"},
    {"*flash_attn*"},
    {"use_flash_attention*"},
    {"use_cache*"},
    {"use_mamba_kernels"},
    {"is_hybrid_cache"},
    {"mask_time_*"},
    {"mask_feature_*"},
    {"output_attentions"},
    {"return_dict"},
    {"global_step"},
    {"local_rank"},
    {"pretraining_tp"},
    {"masked_softmax_fusion"},
    {"*parallel_attn*"},  // which of attention and feed-forward comes first
    {"initializer_*"},
    // What is done to q, k and v before the attention, or to o behind it: biases, norms, clipping, rotations
    // and factors. The kernel gets its operands from there.
    {"attention_bias"},
    {"attention_out_bias"},
    {"attention_output_bias"},
    {"attention_qkv_bias"},
    {"add_qkv_bias"},
    {"qkv_bias"},
    {"qkv_proj_bias"},
    {"use_attention_bias"},
    {"use_qkv_bias"},
    {"*layernorm*"},
    {"*layer_norm*"},
    {"qk_norm"},
    {"use_qk_norm"},
    {"query_key_norm"},
    {"*norm_eps"},
    {"*rms_eps"},
    {"qk_ln"},
    {"qk_norm_*"},
    {"clip_qkv"},
    {"rope_*"},
    {"*_rope_*"},
    {"rotary_*"},
    {"*_rotary_*"},
    {"partial_rotary_factor"},
    {"no_rope_layers"},
    {"no_rope_layer_interval"},
    {"q_lora_rank"},
    {"o_lora_rank"},
    {"attn_output_gate"},
    {"max_position_embeddings"},
    {"alibi_bias_max"},  // slopes are given at launch
    {"offset_alibi", "bloom"},
    {"fused_qkv"},
    {"attention_value_scale", "mimo_v2_flash"},
    {"use_head_wise_attn_gate", "step3p5"},
    {"key_multiplier", "falcon_h1"},
    {"attention_in_multiplier", "falcon_h1"},
    {"attention_out_multiplier", "falcon_h1"},
    {"mamba_*", "falcon_h1"},  // beside each attention, not instead of it
    {"ssm_*", "falcon_h1"},
    {"conv_window", "baichuan_m1"},
    {"apply_query_key_layer_scaling", "chatglm"},  // divided out and multiplied in again
    {"attn_layer_indices", "falcon_h1"},
    {"use_shared_attention_adapter", "zamba2"},
    {"num_gqa_groups", "openelm"},  // the lists of heads say it
    {"normalize_qk_projections", "openelm"},
    {"qkv_multipliers", "openelm"},
    {"use_cla", "hunyuan"},  // layers that share their keys and values have the same attention
    {"cla_share_factor", "hunyuan"},
    {"use_cla", "hunyuan_v1_moe"},
    {"cla_share_factor", "hunyuan_v1_moe"},
    {"cla_share_factor", "hunyuan_v1_dense"},
    {"hybrid_layer_ids", "zamba2"},
    {"num_query_groups", "zamba2"},
    // They concern the embeddings, the feed-forward part, the experts and the last layer's logits.
    {"lm_head*"},
    {"*_token_id"},
    {"*_token_ids"},
    {"*_token_index"},
    {"*_token_mask"},
    {"final_logit*"},
    {"logit_scale", "cohere"},
    {"logit_scale", "cohere2"},
    {"logit_scale", "cohere2_moe"},
    {"logits_scaling"},
    {"logits_soft_cap", "recurrent_gemma"},
    {"lru_width", "recurrent_gemma"},
    {"lm_logits*"},
    {"*logits_to_keep"},
    {"*router_logit*"},
    {"routed_scaling_factor"},
    {"router_scaling_factor"},
    {"scale_fmt"},
    {"scale_emb*"},
    {"scale_depth"},
    {"embedding_multiplier_scale"},
    {"output_multiplier_scale"},
    {"mup_width_scale"},
    {"mup_embeddings_scale"},
    {"embeddings_scale*"},
    {"*w_init_variance_scale"},
    {"width_scale"},
    {"chunk_size_feed_forward"},
    {"activation_sparsity_pattern"},
    {"altup_*", "gemma3n_text"},
    {"layer_scale_init_value"},
    {"layerscale_value"},
    {"use_mask_token"},
    {"use_auxiliary_head"},
    {"seconds_per_chunk"},
    {"scale_factor", "idefics3"},  // pixels to tokens
    {"scale_factor", "smolvlm"},
    {"expert_layer_*"},
    {"num_local_experts"},
    {"moe_layer_*"},
    {"classifier_*"},
    {"sparse_prediction"},
    {"sparse_pred_ignore_index"},
    {"decoder_sparse_step"},
    {"*_attn_alpha_factor", "minimax"},  // factors of the residual stream
    {"*_attn_beta_factor", "minimax"},
    // Names and lists that no computation reads.
    {"architectures"},
    {"auto_map"},
    {"id2label"},
    {"label2id"},
    {"model_type"},
    {"_name_or_path"},
    {"task_specific_params"},
    {"*quant*"},
    {"compression_config"},
    {"pruned_heads"},
    {"prefix", "opt"},
    {"full_attn_mod", "phi3"},
    {"transformers_version"},
    {"dtype"},
    {"torch_dtype"},
};

bool matches(std::string_view pattern, std::string_view name) {
    const bool open_end = pattern.ends_with('*');
    const bool open_begin = pattern.starts_with('*');
    if (open_end) pattern.remove_suffix(1);
    if (open_begin) pattern.remove_prefix(1);
    if (open_begin && open_end) return name.find(pattern) != name.npos;
    if (open_begin) return name.ends_with(pattern);
    return open_end ? name.starts_with(pattern) : name == pattern;
}

// "numKvHeads" and "num_kv_heads" alike.
std::vector<std::string> words_of_name(std::string_view name) {
    std::vector<std::string> words(1);
    bool was_lower = false;
    for (const char letter : name) {
        const auto code = static_cast<unsigned char>(letter);
        const bool new_word = std::isalnum(code) == 0 || (std::isupper(code) != 0 && was_lower);
        if (new_word && !words.back().empty()) words.emplace_back();
        if (std::isalnum(code) != 0) words.back() += static_cast<char>(std::tolower(code));
        was_lower = std::islower(code) != 0;
    }
    return words;
}

}  // namespace

bool is_off(const nlohmann::json& value) {
    if (value.is_number()) return value == 0;
    return value.is_null() || value == false || value == "" || (value.is_structured() && value.empty());
}

bool speaks_of_attention(std::string_view name) {
    std::string lower(name);
    std::ranges::transform(lower, lower.begin(),
                           [](char letter) { return std::tolower(static_cast<unsigned char>(letter)); });
    const auto is_in_name = [&](std::string_view stem) { return lower.find(stem) != lower.npos; };
    if (std::ranges::any_of(kStems, is_in_name)) return true;
    return std::ranges::any_of(words_of_name(name), [](const std::string& word) {
        return std::ranges::find(kWords, std::string_view(word)) != std::end(kWords);
    });
}

bool has_word(std::string_view name, std::initializer_list<std::string_view> words) {
    return std::ranges::any_of(words_of_name(name), [&](const std::string& word) {
        return std::ranges::find(words, std::string_view(word)) != words.end();
    });
}

std::string printable_field(std::string_view field) {
    std::string text;
    for (std::size_t begin = 0; begin <= field.size();) {
        const std::size_t end = std::min(field.find('.', begin), field.size());
        text += (begin == 0 ? "" : ".") + field_name(field.substr(begin, end - begin));
        begin = end + 1;
    }
    return text;
}

bool is_daily_life(std::string_view model_type, std::string_view name) {
    return std::ranges::any_of(kDailyLife, [&](const DailyLife& entry) {
        return (entry.model_type.empty() || entry.model_type == model_type) && matches(entry.name, name);
    });
}

bool names_a_tower(std::string_view name) {
    constexpr std::string_view kSenses[] = {"vision",    "visual", "audio",    "speech",    "image",
                                            "video",     "talker", "code2wav", "token2wav", "qformer",
                                            "perceiver", "vit",    "dit"};
    const auto words = words_of_name(name);
    return std::ranges::any_of(words, [&](const std::string& word) {
        return std::ranges::find(kSenses, std::string_view(word)) != std::end(kSenses);
    });
}

}  // namespace attnsmith::problem
