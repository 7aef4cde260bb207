#include "problem/model/types.hpp"

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
    {"dbrx", decoder},
    {"deci", decoder},
    {"deepseek", decoder},
    {"deepseek_v2", decoder},
    {"deepseek_v3", decoder},
    {"deepseek_v32", decoder},
    {"dots1", decoder},
    {"ernie4_5", decoder},
    {"ernie4_5_moe", decoder},
    {"exaone", decoder},
    {"exaone4", decoder},
    {"falcon", decoder},
    {"falcon_h1", decoder},
    {"gemma", decoder},
    {"gemma2", decoder},
    {"gemma3_text", decoder},
    {"gemma3n_text", decoder},
    {"gemma4_text", decoder},
    {"glm", decoder},
    {"glm4", decoder},
    {"glm4_moe", decoder},
    {"glm4v_text", decoder},
    {"glm_moe_dsa", decoder},
    {"gpt2", decoder},
    {"gpt_bigcode", decoder},
    {"gpt_neo", decoder},
    {"gpt_neox", decoder},
    {"gpt_oss", decoder},
    {"gptj", decoder},
    {"granite", decoder},
    {"granitemoe", decoder},
    {"granitemoehybrid", decoder},
    {"granitemoeshared", decoder},
    {"grok-1", decoder},
    {"helium", decoder},
    {"hunyuan", decoder},
    {"hunyuan_v1_dense", decoder},
    {"hunyuan_v1_moe", decoder},
    {"internlm", decoder},
    {"internlm2", decoder},
    {"internlm3", decoder},
    {"jais", decoder},
    {"jamba", decoder},
    {"kimi_k2", decoder},
    {"lfm2", decoder},
    {"llama", decoder},
    {"llama4_text", decoder},
    {"minicpm", decoder},
    {"minicpm3", decoder},
    {"minimax", decoder},
    {"minimax_m1", decoder},
    {"minimax_text_01", decoder},
    {"ministral", decoder},
    {"ministral3", decoder},
    {"mistral", decoder},
    {"mixtral", decoder},
    {"mllama_text_model", decoder},
    {"mpt", decoder},
    {"nemotron", decoder},
    {"nemotron-nas", decoder},
    {"nemotron_h", decoder},
    {"olmo", decoder},
    {"olmo2", decoder},
    {"olmo3", decoder},
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
    {"qwen3_moe", decoder},
    {"qwen3_next", decoder},
    {"qwen3_omni_moe_text", decoder},
    {"qwen3_vl_moe_text", decoder},
    {"qwen3_vl_text", decoder},
    {"recurrent_gemma", decoder},
    {"RefinedWeb", decoder},
    {"RefinedWebModel", decoder},
    {"seed_oss", decoder},
    {"smollm3", decoder},
    {"stablelm", decoder},
    {"stablelm_epoch", decoder},
    {"starcoder2", decoder},
    {"t5_gemma_module", decoder},
    {"Yi", decoder},
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
    {"ernie", encoder},
    {"esm", encoder},
    {"hubert", encoder},
    {"layoutlm", encoder},
    {"longformer", encoder},
    {"megatron-bert", encoder},
    {"modernbert", encoder},
    {"mpnet", encoder},
    {"nomic_bert", encoder},
    {"nystromformer", encoder},
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
    {"gemma3n", wrapper},
    {"gemma4", wrapper},  // whose use_bidirectional_attention says it where tokens of an image see each other
    {"glm4v", wrapper},
    {"idefics3", wrapper},
    {"internvl", wrapper},
    {"internvl_chat", wrapper},
    {"kimi_vl", wrapper},
    {"llama4", wrapper},
    {"llava", wrapper},
    {"llava_next", wrapper},
    {"llava_onevision", wrapper},
    {"mistral3", wrapper},
    {"mllama", wrapper},
    {"qwen2_5_omni", wrapper},
    {"qwen2_5_omni_thinker", wrapper},
    {"qwen3_omni_moe", wrapper},
    {"qwen3_omni_moe_thinker", wrapper},
    {"qwen3_vl", wrapper},
    {"qwen3_vl_moe", wrapper},
    {"smolvlm", wrapper},
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

constexpr std::string_view kComeWithCode[] = {"arctic",
                                              "baichuan",
                                              "baichuan_m1",
                                              "btlm",
                                              "chatglm",
                                              "deci",
                                              "deepseek",
                                              "exaone",
                                              "grok-1",
                                              "hunyuan",
                                              "hunyuan_v1_dense",
                                              "hunyuan_v1_moe",
                                              "internlm",
                                              "internlm2",
                                              "internlm3",
                                              "internvl_chat",
                                              "jais",
                                              "kimi_k2",
                                              "kimi_vl",
                                              "minicpm",
                                              "minicpm3",
                                              "minimax_m1",
                                              "minimax_text_01",
                                              "nemotron-nas",
                                              "nomic_bert",
                                              "openelm",
                                              "orion",
                                              "phi3small",
                                              "phi4flash",
                                              "qwen",
                                              "RefinedWeb",
                                              "RefinedWebModel",
                                              "stablelm_epoch",
                                              "Yi"};

struct TextType {
    std::string_view around;
    std::string_view inside;
};

// What transformers' classes put into a part of the file that says no model_type.
constexpr TextType kTextTypes[] = {
    {"aya_vision", "cohere2"},
    {"cohere2_vision", "cohere2"},
    {"gemma3", "gemma3_text"},
    {"gemma3n", "gemma3n_text"},
    {"gemma4", "gemma4_text"},
    {"glm4v", "glm4v_text"},
    {"idefics3", "llama"},
    {"internvl", "qwen2"},
    {"kimi_vl", "deepseek_v3"},
    {"llama4", "llama4_text"},
    {"llava", "llama"},
    {"llava_next", "llama"},
    {"llava_onevision", "qwen2"},
    {"mistral3", "mistral"},
    {"mllama", "mllama_text_model"},
    {"paligemma", "gemma"},
    {"qwen2_5_omni", "qwen2_5_omni_text"},
    {"qwen2_5_omni_thinker", "qwen2_5_omni_text"},
    {"qwen2_5_vl", "qwen2_5_vl_text"},
    {"qwen2_vl", "qwen2_vl_text"},
    {"qwen3_omni_moe", "qwen3_omni_moe_text"},
    {"qwen3_omni_moe_thinker", "qwen3_omni_moe_text"},
    {"qwen3_vl", "qwen3_vl_text"},
    {"qwen3_vl_moe", "qwen3_vl_moe_text"},
    {"smolvlm", "llama"},
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
    {"nemotron-nas", {"block_configs"}},
    // Whether keys and values are latent.
    {"deepseek_v2", {"kv_lora_rank"}},
    {"deepseek_v3", {"kv_lora_rank"}},
    {"deepseek_v32", {"kv_lora_rank"}},
    {"glm_moe_dsa", {"kv_lora_rank"}},
    {"kimi_k2", {"kv_lora_rank"}},
    {"minicpm3", {"kv_lora_rank"}},
};

struct TypeRefusal {
    std::string_view name;
    std::string_view reason;
};

// Types whose code computes another attention than any kernel here, though no field of theirs says so.
constexpr TypeRefusal kRefused[] = {
    {"big_bird", "block-sparse attention is not built in this version (model_type big_bird)"},
    {"longformer", "local attention with global tokens is not built in this version (model_type longformer)"},
    {"longt5", "local attention with a learned bias is not built in this version (model_type longt5)"},
    {"mpnet",
     "a learned relative position bias on the logits is not built in this version (model_type mpnet)"},
    {"mt5", "a learned relative position bias on the logits is not built in this version (model_type mt5)"},
    {"nystromformer", "attention by landmarks is not built in this version (model_type nystromformer)"},
    {"phi4flash",
     "differential attention beside Mamba layers is not built in this version (model_type phi4flash)"},
    {"phi3small", "block-sparse attention is not built in this version (model_type phi3small)"},
    {"reformer", "attention by hashed buckets is not built in this version (model_type reformer)"},
    {"t5", "a learned relative position bias on the logits is not built in this version (model_type t5)"},
    {"transfo-xl", "relative positions on the logits are not built in this version (model_type transfo-xl)"},
    {"umt5", "a learned relative position bias on the logits is not built in this version (model_type umt5)"},
    {"xlnet",
     "permuted masks and relative positions on the logits are not built in this version (model_type xlnet)"},
};

}  // namespace

TypeClass class_of(std::string_view model_type) {
    const auto* found = std::ranges::find(kKnown, model_type, &KnownType::name);
    return found == std::end(kKnown) ? unknown : found->type_class;
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
    const auto* found = std::ranges::find(kDeciding, model_type, &DecidingFields::model_type);
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
