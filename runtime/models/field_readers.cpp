#include "models/field_readers.hpp"

#include <algorithm>
#include <iterator>

#include "models/types.hpp"

namespace attnsmith::problem {
namespace {

struct FieldReaders {
    std::string_view field;
    std::string_view types = {};  // between blanks; none where only code that comes with a model reads it
};

constexpr FieldReaders kFieldReaders[] = {
    // Windows, and which layers have them.
    {"sliding_window",
     "cohere2 cohere2_moe cwm dots1 exaone4 flint gemma2 gemma3_text gemma3n_text gemma4_text gpt_oss "
     "granite_swa jamba lfm3 mimo_v2_flash minimax ministral ministral3 mistral mixtral olmo3 olmoe "
     "openai_privacy_filter phi3 phimoe qwen2 qwen2_5_omni_text qwen2_5_vl qwen2_5_vl_text qwen2_moe "
     "qwen2_vl qwen2_vl_text qwen3 qwen3_moe recurrent_gemma smollm3 starcoder2 step3p5 t5_gemma_module"},
    {"use_sliding_window",
     "qwen2 qwen2_5_omni_text qwen2_5_vl qwen2_5_vl_text qwen2_moe qwen2_vl qwen2_vl_text qwen3 qwen3_moe "
     "smollm3"},
    {"max_window_layers",
     "dots1 qwen2 qwen2_5_omni_text qwen2_5_vl qwen2_5_vl_text qwen2_moe qwen2_vl qwen2_vl_text qwen3"},
    {"sliding_window_pattern", "cohere2 cohere2_moe exaone4 gemma3_text"},
    {"_sliding_window_pattern"},
    {"sliding_window_layers"},
    {"sliding_window_size"},
    {"attention_window_size", "recurrent_gemma"},
    {"window_size", "gpt_neo"},
    {"local_attention", "modernbert"},
    {"global_attn_every_n_layers", "modernbert"},
    {"attention_layers", "gpt_neo"},
    {"attention_types", "gpt_neo"},
    // Which layers are attention, and which.
    {"layer_types",
     "bamba cohere2 cohere2_moe cwm dots1 exaone4 flint gemma2 gemma3_text gemma3n_text gemma4_text "
     "gpt_oss granite_swa granitemoehybrid jamba lfm2 lfm3 llama4_text mimo_v2_flash minimax "
     "minimax_m3_vl_text ministral modernbert nemotron_h olmo3 olmo_hybrid qwen2 qwen2_5_omni_text "
     "qwen2_5_vl qwen2_5_vl_text qwen2_moe qwen2_vl qwen2_vl_text qwen3 qwen3_next recurrent_gemma "
     "smollm3 step3p5 t5_gemma_module zamba zamba2"},
    {"layers_block_type", "bamba granitemoehybrid jamba nemotron_h recurrent_gemma zamba zamba2"},
    {"block_types", "recurrent_gemma"},
    {"_block_types", "recurrent_gemma"},
    {"block_configs"},
    {"hybrid_override_pattern", "nemotron_h"},
    {"attn_type_list", "minimax"},
    {"attn_layer_indices", "bamba"},
    {"full_attn_idxs", "lfm2"},
    {"attn_layer_period", "jamba zamba"},
    {"attn_layer_offset", "jamba zamba"},
    {"full_attention_interval", "qwen3_next"},
    {"cross_attention_layers", "mllama_text_model"},
    {"attention_chunk_size", "llama4_text"},
    // What changes the logits and the mask.
    {"attn_logit_softcapping", "gemma2 t5_gemma_module"},
    {"max_attn_value"},
    {"alibi", "falcon"},
    {"use_alibi"},
    {"position_embedding_type",
     "albert bert big_bird camembert data2vec-text electra ernie esm granitemoe granitemoehybrid "
     "granitemoeshared megatron-bert nystromformer roberta xlm-roberta xlm-roberta-xl"},
    {"rope_parameters.llama_4_scaling_beta", "ministral3 mistral4"},
    {"rope_scaling.llama_4_scaling_beta", "ministral3 mistral4"},
    {"query_pre_attn_scalar", "gemma2 gemma3_text step3p5 t5_gemma_module"},
    {"attention_multiplier", "granite granite_swa granitemoe granitemoehybrid granitemoeshared"},
    {"attn_config", "dbrx mpt"},
    {"scale_attn_weights", "gpt2 gpt_bigcode"},
    {"mup_scale_qk_dot_by_d"},
    {"scale_qk_dot_by_d"},
    {"is_decoder",
     "bert big_bird camembert data2vec-text electra ernie esm gpt_neox megatron-bert reformer roberta "
     "t5_gemma_module xlm-roberta xlm-roberta-xl"},
    {"use_bidirectional_attention", "gemma gemma2 gemma3_text gemma3n_text gemma4_text"},
    // Heads.
    {"num_key_value_heads",
     "apertus arcee bamba bitnet cohere cohere2 cohere2_moe cwm deepseek_v2 deepseek_v3 deepseek_v32 "
     "dots1 ernie4_5 ernie4_5_moe eurobert exaone exaone4 falcon_h1 flint gemma gemma2 gemma3_text "
     "gemma3n_text gemma4_text glm glm4 glm4_moe glm4v_text glm_moe_dsa gpt_oss granite granite_swa "
     "granitemoe granitemoehybrid granitemoeshared helium internlm3 jamba lfm2 lfm3 llama llama4_text "
     "mimo_v2_flash minicpm3 minimax minimax_m3_vl_text ministral ministral3 mistral mistral4 mixtral "
     "mllama_text_model nemotron nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe openai_privacy_filter phi "
     "phi3 phimoe qwen2 qwen2_5_omni_text qwen2_5_vl qwen2_5_vl_text qwen2_moe qwen2_vl qwen2_vl_text "
     "qwen3 qwen3_moe qwen3_next qwen3_omni_moe_text qwen3_vl_moe_text qwen3_vl_text recurrent_gemma "
     "seed_oss smollm3 stablelm starcoder2 step3p5 t5_gemma_module youtu zamba zamba2"},
    {"num_kv_heads", "falcon"},
    {"n_head_kv"},
    {"n_kv_heads"},
    {"n_kv_head"},
    {"kv_n_heads"},
    {"multi_query", "falcon gpt_bigcode"},
    {"multi_query_attention"},
    {"num_key_value_heads_per_layer"},
    {"num_swa_attention_heads"},
    {"num_swa_key_value_heads"},
    {"num_attention_groups", "step3p5"},
    {"num_sliding_attention_heads", "step3p5"},
    {"attention_other_setting", "step3p5"},
    {"attention_k_eq_v", "gemma4_text"},
    {"num_global_key_value_heads", "gemma4_text"},
    {"global_head_dim", "gemma4_text"},
    {"head_dim",
     "apertus arcee bamba beit bitnet cohere cohere2 cohere2_moe cwm dbrx deepseek_v2 deepseek_v3 "
     "deepseek_v32 deit dinov2 dots1 ernie4_5 ernie4_5_moe esm eurobert exaone exaone4 falcon falcon_h1 "
     "flint gemma gemma2 gemma3_text gemma3n_text gemma4_text glm glm4 glm4_moe glm4v_text glm_moe_dsa "
     "gpt_oss granite granite_swa granitemoe granitemoehybrid granitemoeshared helium internlm3 jamba "
     "lfm2 lfm3 llama llama4_text mimo_v2_flash minimax minimax_m3_vl_text ministral ministral3 mistral "
     "mixtral mllama_text_model modernbert nemotron nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe "
     "openai_privacy_filter persimmon phi phi3 phimoe qwen2 qwen2_5_omni_text qwen2_5_vl qwen2_5_vl_text "
     "qwen2_moe qwen2_vl qwen2_vl_text qwen3 qwen3_moe qwen3_next qwen3_omni_moe_text qwen3_vl_moe_text "
     "qwen3_vl_text recurrent_gemma seed_oss smollm3 stablelm starcoder2 step3p5 t5_gemma_module vit "
     "zamba zamba2"},
    {"attention_head_dim", "nemotron_h zamba zamba2"},
    {"kv_channels"},
    {"d_kv"},
    {"d_head"},
    {"v_head_dim", "deepseek_v2 deepseek_v3 deepseek_v32 glm_moe_dsa mimo_v2_flash minicpm3 mistral4 youtu"},
    {"kv_lora_rank", "deepseek_v2 deepseek_v3 deepseek_v32 glm_moe_dsa minicpm3 mistral4 youtu"},
};

bool lists_type(std::string_view words, std::string_view word) {
    while (!words.empty()) {
        const std::string_view first = words.substr(0, words.find(' '));
        if (first == word) return true;
        words.remove_prefix(std::min(first.size() + 1, words.size()));
    }
    return false;
}

// Whether all that models of this type read is known.
bool is_known_code(std::string_view model_type) {
    const TypeClass type = class_of(model_type);
    return (type == TypeClass::decoder || type == TypeClass::encoder || type == TypeClass::encoder_decoder) &&
           (!comes_with_code(model_type) || code_of(model_type) != model_type);
}

}  // namespace

bool reads_field(std::string_view model_type, std::string_view field) {
    const auto* readers = std::ranges::find(kFieldReaders, field, &FieldReaders::field);
    if (readers == std::end(kFieldReaders)) {
        const std::string_view object = field.substr(0, field.find('.'));
        readers = std::ranges::find(kFieldReaders, object, &FieldReaders::field);
    }
    return readers == std::end(kFieldReaders) || !is_known_code(model_type) ||
           lists_type(readers->types, code_of(model_type));
}

}  // namespace attnsmith::problem
