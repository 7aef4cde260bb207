#include "models/types.hpp"

#include <algorithm>
#include <iterator>

namespace attnsmith::problem {
namespace {

struct KnownType {
    std::string_view name;
    TypeClass type_class;
};

using enum TypeClass;

// A decoder is listed when its attention was read in its own published code: heads, head dims, masks,
// windows, scale, and whatever else changes the logits.
constexpr KnownType kKnown[] = {
    {"apertus", decoder},
    {"arcee", decoder},
    {"arctic", decoder},
    {"baichuan", decoder},
    {"baichuan_m1", decoder},
    {"bamba", decoder},
    {"bitnet", decoder},
    {"bloom", decoder},
    {"btlm", decoder},
    {"chatglm", decoder},
    {"clip_text_model", decoder},
    {"codegen", decoder},
    {"cohere", decoder},
    {"cohere2", decoder},
    {"cohere2_moe", decoder},
    {"cwm", decoder},
    {"dbrx", decoder},
    {"deci", decoder},
    {"deepseek", decoder},
    {"deepseek_v2", decoder},
    {"deepseek_v3", decoder},
    {"deepseek_v32", decoder},
    {"diffllama", decoder},
    {"dots1", decoder},
    {"ernie4_5", decoder},
    {"ernie4_5_moe", decoder},
    {"exaone", decoder},
    {"exaone4", decoder},
    {"exaone_moe", decoder},
    {"falcon", decoder},
    {"falcon_h1", decoder},
    {"flex_olmo", decoder},
    {"flint", decoder},
    {"gemma", decoder},
    {"gemma2", decoder},
    {"gemma3_text", decoder},
    {"gemma3n_text", decoder},
    {"gemma4_text", decoder},
    {"gemma4_unified_text", decoder},
    {"glm", decoder},
    {"glm4", decoder},
    {"glm4_moe", decoder},
    {"glm4_moe_lite", decoder},
    {"glm4v_text", decoder},
    {"glm_moe_dsa", decoder},
    {"gpt2", decoder},
    {"gpt_bigcode", decoder},
    {"gpt_neo", decoder},
    {"gpt_neox", decoder},
    {"gpt_oss", decoder},
    {"gptj", decoder},
    {"granite", decoder},
    {"granite_swa", decoder},
    {"granitemoe", decoder},
    {"granitemoe_swa", decoder},
    {"granitemoehybrid", decoder},
    {"granitemoeshared", decoder},
    {"grok-1", decoder},
    {"helium", decoder},
    {"hunyuan", decoder},
    {"hunyuan_v1_dense", decoder},
    {"hunyuan_v1_moe", decoder},
    {"hy_v3", decoder},
    {"internlm", decoder},
    {"internlm2", decoder},
    {"internlm3", decoder},
    {"jais", decoder},
    {"jais2", decoder},
    {"jamba", decoder},
    {"kimi_k2", decoder},
    {"kyutai_speech_to_text", decoder},
    {"lfm2", decoder},
    {"lfm2_moe", decoder},
    {"lfm3", decoder},
    {"llama", decoder},
    {"llama4_text", decoder},
    {"mimo_v2_flash", decoder},
    {"minicpm", decoder},
    {"minicpm3", decoder},
    {"minimax", decoder},
    {"minimax_m1", decoder},
    {"minimax_m2", decoder},
    {"minimax_m3", decoder},
    {"minimax_m3_vl_text", decoder},
    {"minimax_text_01", decoder},
    {"ministral", decoder},
    {"ministral3", decoder},
    {"mistral", decoder},
    {"mistral4", decoder},
    {"mixtral", decoder},
    {"mllama_text_model", decoder},
    {"moshi", decoder},
    {"mpt", decoder},
    {"nemotron", decoder},
    {"nemotron-nas", decoder},
    {"nemotron_h", decoder},
    {"olmo", decoder},
    {"olmo2", decoder},
    {"olmo3", decoder},
    {"olmo_hybrid", decoder},
    {"olmoe", decoder},
    {"openelm", decoder},
    {"opt", decoder},
    {"orion", decoder},
    {"persimmon", decoder},
    {"phi", decoder},
    {"phi3", decoder},
    {"phi3small", decoder},
    {"phi4flash", decoder},
    {"phimoe", decoder},
    {"qwen", decoder},
    {"qwen2", decoder},
    {"qwen2_5_omni_text", decoder},
    {"qwen2_5_vl", decoder},
    {"qwen2_5_vl_text", decoder},
    {"qwen2_moe", decoder},
    {"qwen2_vl", decoder},
    {"qwen2_vl_text", decoder},
    {"qwen3", decoder},
    {"qwen3_5_moe_text", decoder},
    {"qwen3_5_text", decoder},
    {"qwen3_moe", decoder},
    {"qwen3_next", decoder},
    {"qwen3_omni_moe_text", decoder},
    {"qwen3_vl_moe_text", decoder},
    {"qwen3_vl_text", decoder},
    {"qwen4_exp_text", decoder},
    {"recurrent_gemma", decoder},
    {"RefinedWeb", decoder},
    {"RefinedWebModel", decoder},
    {"seed_oss", decoder},
    {"smollm3", decoder},
    {"solar_open", decoder},
    {"stablelm", decoder},
    {"stablelm_epoch", decoder},
    {"starcoder2", decoder},
    {"step3p5", decoder},
    {"t5_gemma_module", decoder},
    {"vaultgemma", decoder},
    {"Yi", decoder},
    {"youtu", decoder},
    {"zamba", decoder},
    {"zamba2", decoder},

    {"albert", encoder},
    {"beit", encoder},
    {"bert", encoder},
    {"big_bird", encoder},
    {"camembert", encoder},
    {"clip_vision_model", encoder},
    {"data2vec-text", encoder},
    {"deberta", encoder},
    {"deberta-v2", encoder},
    {"deit", encoder},
    {"dinov2", encoder},
    {"distilbert", encoder},
    {"electra", encoder},
    {"embedding_gemma2_text", encoder},
    {"ernie", encoder},
    {"esm", encoder},
    {"eurobert", encoder},
    {"hubert", encoder},
    {"layoutlm", encoder},
    {"longformer", encoder},
    {"megatron-bert", encoder},
    {"modernbert", encoder},
    {"mpnet", encoder},
    {"nomic_bert", encoder},
    {"nystromformer", encoder},
    {"openai_privacy_filter", encoder},
    {"reformer", encoder},
    {"roberta", encoder},
    {"siglip_text_model", encoder},
    {"siglip_vision_model", encoder},
    {"transfo-xl", encoder},
    {"vit", encoder},
    {"wav2vec2", encoder},
    {"xlm-roberta", encoder},
    {"xlm-roberta-xl", encoder},
    {"xlnet", encoder},

    {"bart", encoder_decoder},
    {"longt5", encoder_decoder},
    {"m2m_100", encoder_decoder},
    {"marian", encoder_decoder},
    {"mbart", encoder_decoder},
    {"mt5", encoder_decoder},
    {"pegasus", encoder_decoder},
    {"t5", encoder_decoder},
    {"t5gemma", encoder_decoder},
    {"umt5", encoder_decoder},
    {"whisper", encoder_decoder},

    {"aya_vision", wrapper},
    {"cohere2_vision", wrapper},
    {"embedding_gemma2", wrapper},
    {"gemma3n", wrapper},
    {"gemma4", wrapper},  // whose use_bidirectional_attention says it where tokens of an image see each other
    {"gemma4_unified", wrapper},
    {"glm4v", wrapper},
    {"idefics3", wrapper},
    {"internvl", wrapper},
    {"internvl_chat", wrapper},
    {"kimi_k25", wrapper},
    {"kimi_vl", wrapper},
    {"llama4", wrapper},
    {"llava", wrapper},
    {"llava_next", wrapper},
    {"llava_onevision", wrapper},
    {"minimax_m3_vl", wrapper},
    {"mistral3", wrapper},
    {"mllama", wrapper},
    {"qwen2_5_omni", wrapper},
    {"qwen2_5_omni_thinker", wrapper},
    {"qwen3_5", wrapper},
    {"qwen3_5_moe", wrapper},
    {"qwen3_omni_moe", wrapper},
    {"qwen3_omni_moe_thinker", wrapper},
    {"qwen3_vl", wrapper},
    {"qwen3_vl_moe", wrapper},
    {"qwen4_exp", wrapper},
    {"smolvlm", wrapper},
    {"step3p7", wrapper},
    {"vipllava", wrapper},

    {"gemma3", image_tokens},
    {"paligemma", prefix_lm},

    {"convnext", without_attention},
    {"falcon_mamba", without_attention},
    {"hyena", without_attention},
    {"mamba", without_attention},
    {"mamba2", without_attention},
    {"resnet", without_attention},
    {"retnet", without_attention},
    {"rwkv", without_attention},
    {"rwkv5", without_attention},
    {"rwkv6", without_attention},
    {"rwkv7", without_attention},
    {"xlstm", without_attention},
};

struct SharedCode {
    std::string_view name;
    std::string_view code;
};

constexpr SharedCode kSharedCode[] = {
    {"embedding_gemma2_text", "gemma4_text"},
    {"exaone_moe", "exaone4"},
    {"flex_olmo", "llama"},
    {"gemma4_unified_text", "gemma4_text"},
    {"glm4_moe_lite", "youtu"},
    {"granitemoe_swa", "granite_swa"},
    {"hunyuan_v1_dense", "llama"},
    {"hunyuan_v1_moe", "llama"},
    {"hy_v3", "llama"},
    {"jais2", "llama"},
    {"kyutai_speech_to_text", "llama"},
    {"lfm2_moe", "lfm2"},
    {"minimax_m2", "llama"},
    {"minimax_m3", "minimax_m3_vl_text"},
    {"moshi", "llama"},
    {"qwen3_5_moe_text", "qwen3_next"},
    {"qwen3_5_text", "qwen3_next"},
    {"qwen4_exp_text", "qwen3_next"},
    {"solar_open", "llama"},
    {"vaultgemma", "gemma2"},
};

struct TypeSinks {
    std::string_view name;
    Sinks sinks;
};

constexpr TypeSinks kSinks[] = {
    {"gpt_oss", Sinks::all},
    {"flint", Sinks::all},
    {"granite_swa", Sinks::all},
    {"mimo_v2_flash", Sinks::sliding},
    {"openai_privacy_filter", Sinks::all},
};

constexpr std::string_view kComeWithCode[] = {
    "arctic",         "baichuan",   "baichuan_m1",     "btlm",           "chatglm",
    "deci",           "deepseek",   "grok-1",          "hunyuan",        "hunyuan_v1_dense",
    "hunyuan_v1_moe", "internlm",   "internlm2",       "internvl_chat",  "jais",
    "kimi_k2",        "kimi_vl",    "minicpm",         "minimax_m1",     "minimax_text_01",
    "nemotron-nas",   "openelm",    "orion",           "phi3small",      "phi4flash",
    "qwen",           "RefinedWeb", "RefinedWebModel", "stablelm_epoch", "Yi"};

struct TextType {
    std::string_view around;
    std::string_view inside;
};

// What transformers' classes put into a part of the file that says no model_type.
constexpr TextType kTextTypes[] = {
    {"aya_vision", "cohere2"},
    {"cohere2_vision", "cohere2"},
    {"embedding_gemma2", "embedding_gemma2_text"},
    {"gemma3", "gemma3_text"},
    {"gemma3n", "gemma3n_text"},
    {"gemma4", "gemma4_text"},
    {"gemma4_unified", "gemma4_unified_text"},
    {"glm4v", "glm4v_text"},
    {"idefics3", "llama"},
    {"internvl", "qwen2"},
    {"kimi_k25", "deepseek_v3"},
    {"kimi_vl", "deepseek_v3"},
    {"llama4", "llama4_text"},
    {"llava", "llama"},
    {"llava_next", "llama"},
    {"llava_onevision", "qwen2"},
    {"minimax_m3_vl", "minimax_m3_vl_text"},
    {"mistral3", "mistral"},
    {"mllama", "mllama_text_model"},
    {"paligemma", "gemma"},
    {"qwen2_5_omni", "qwen2_5_omni_text"},
    {"qwen2_5_omni_thinker", "qwen2_5_omni_text"},
    {"qwen2_5_vl", "qwen2_5_vl_text"},
    {"qwen2_vl", "qwen2_vl_text"},
    {"qwen3_5", "qwen3_5_text"},
    {"qwen3_5_moe", "qwen3_5_moe_text"},
    {"qwen4_exp", "qwen4_exp_text"},
    {"qwen3_omni_moe", "qwen3_omni_moe_text"},
    {"qwen3_omni_moe_thinker", "qwen3_omni_moe_text"},
    {"qwen3_vl", "qwen3_vl_text"},
    {"qwen3_vl_moe", "qwen3_vl_moe_text"},
    {"smolvlm", "llama"},
    {"step3p7", "step3p5"},
    {"t5gemma", "t5_gemma_module"},
    {"vipllava", "llama"},
};

struct DecidingFields {
    std::string_view model_type;
    std::string_view names[3];  // any of them
};

constexpr DecidingFields kDeciding[] = {
    // Which layers are attention, and which are mixers.
    {"bamba", {"attn_layer_indices", "layer_types", "layers_block_type"}},
    {"granitemoehybrid", {"layer_types", "layers_block_type"}},
    {"jamba", {"attn_layer_period", "layer_types", "layers_block_type"}},
    {"lfm2", {"layer_types", "full_attn_idxs"}},
    {"minimax", {"layer_types", "attn_type_list"}},
    {"minimax_m1", {"attn_type_list"}},
    {"minimax_text_01", {"attn_type_list"}},
    {"nemotron_h", {"hybrid_override_pattern", "layers_block_type", "layer_types"}},
    {"zamba", {"attn_layer_period", "layer_types", "layers_block_type"}},
    {"zamba2", {"layers_block_type", "layer_types"}},
    // What each layer's attention is.
    {"llama4_text", {"attention_chunk_size", "layer_types"}},
    {"cohere2_moe", {"layer_types"}},
    {"flint", {"layer_types"}},
    {"lfm3", {"layer_types"}},
    {"mimo_v2_flash", {"layer_types"}},
    {"nemotron-nas", {"block_configs"}},
    // Whether keys and values are latent.
    {"deepseek_v2", {"kv_lora_rank"}},
    {"deepseek_v3", {"kv_lora_rank"}},
    {"deepseek_v32", {"kv_lora_rank"}},
    {"glm_moe_dsa", {"kv_lora_rank"}},
    {"kimi_k2", {"kv_lora_rank"}},
    {"mistral4", {"kv_lora_rank"}},
    {"youtu", {"kv_lora_rank"}},
    {"minicpm3", {"kv_lora_rank"}},
};

struct TypeRefusal {
    std::string_view name;
    std::string_view reason;
};

// Types whose code computes another attention than any kernel here, though no field of theirs says so.
constexpr TypeRefusal kRefused[] = {
    {"big_bird", "block-sparse attention is not supported (model_type big_bird)"},
    {"diffllama", "differential attention is not supported (model_type diffllama)"},
    {"longformer", "local attention with global tokens is not supported (model_type longformer)"},
    {"longt5", "local attention with a learned bias is not supported (model_type longt5)"},
    {"mpnet", "a learned relative position bias on the logits is not supported (model_type mpnet)"},
    {"mt5", "a learned relative position bias on the logits is not supported (model_type mt5)"},
    {"nystromformer", "attention by landmarks is not supported (model_type nystromformer)"},
    {"phi4flash", "differential attention beside Mamba layers is not supported (model_type phi4flash)"},
    {"phi3small", "block-sparse attention is not supported (model_type phi3small)"},
    {"reformer", "attention by hashed buckets is not supported (model_type reformer)"},
    {"t5", "a learned relative position bias on the logits is not supported (model_type t5)"},
    {"transfo-xl", "relative positions on the logits are not supported (model_type transfo-xl)"},
    {"umt5", "a learned relative position bias on the logits is not supported (model_type umt5)"},
    {"xlnet", "permuted masks and relative positions on the logits are not supported (model_type xlnet)"},
};

}  // namespace

TypeClass class_of(std::string_view model_type) {
    const auto* found = std::ranges::find(kKnown, model_type, &KnownType::name);
    return found == std::end(kKnown) ? unknown : found->type_class;
}

std::string_view code_of(std::string_view model_type) {
    const auto* found = std::ranges::find(kSharedCode, model_type, &SharedCode::name);
    return found == std::end(kSharedCode) ? model_type : found->code;
}

Sinks sinks_of(std::string_view model_type) {
    const auto* found = std::ranges::find(kSinks, code_of(model_type), &TypeSinks::name);
    return found == std::end(kSinks) ? Sinks::none : found->sinks;
}

bool comes_with_code(std::string_view model_type) {
    return std::ranges::find(kComeWithCode, model_type) != std::end(kComeWithCode);
}

std::string_view text_type_of(std::string_view model_type) {
    const auto* found = std::ranges::find(kTextTypes, model_type, &TextType::around);
    return found == std::end(kTextTypes) ? std::string_view() : found->inside;
}

bool holds_language_model(std::string_view model_type) {
    const TypeClass type = class_of(model_type);
    return type == wrapper || type == image_tokens || type == prefix_lm;
}

std::vector<std::string_view> deciding_fields(std::string_view model_type) {
    const auto* found = std::ranges::find(kDeciding, code_of(model_type), &DecidingFields::model_type);
    if (found == std::end(kDeciding)) return {};
    std::vector<std::string_view> names;
    for (const std::string_view name : found->names) {
        if (!name.empty()) names.push_back(name);
    }
    return names;
}

std::string_view refusal_of(std::string_view model_type) {
    const auto* found = std::ranges::find(kRefused, model_type, &TypeRefusal::name);
    return found == std::end(kRefused) ? std::string_view() : found->reason;
}

}  // namespace attnsmith::problem
