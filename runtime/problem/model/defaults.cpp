#include "problem/model/defaults.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <variant>

namespace attnsmith::problem {
namespace {

using nlohmann::json;

// A file's own top level always carries the sizes, so a size that is missing there is a mistake; parts inside
// it leave out what equals the default. What decides the kind of attention applies everywhere, since without
// it another attention would be planned in silence. A field that says null is not missing, but for the few
// whose class replaces null too.
enum class Applies : std::uint8_t { anywhere, nested_only, null_too };

// A list, as a file would write it.
struct List {
    std::string_view text;
};

json as_json(List list) { return json::parse(list.text); }
template <typename Scalar>
json as_json(Scalar scalar) {
    return json(scalar);
}

struct ClassDefault {
    std::string_view model_type;
    std::string_view name;
    std::variant<std::int64_t, double, bool, List> value;
    Applies applies = Applies::anywhere;
};

constexpr auto nested = Applies::nested_only;
constexpr auto null_too = Applies::null_too;
constexpr ClassDefault kClassDefaults[] = {
    {"bamba", "num_key_value_heads", 8},
    {"bitnet", "num_key_value_heads", 5},
    {"cohere2", "sliding_window", 4096},
    {"cohere2", "sliding_window_pattern", 4},
    {"dbrx", "attn_config.kv_n_heads", 1},
    {"deepseek_v32", "index_topk", 2048},
    {"dots1", "num_key_value_heads", 32},
    {"dots1", "sliding_window", 4096},
    {"dots1", "max_window_layers", 62},
    {"ernie4_5", "num_key_value_heads", 2},
    {"ernie4_5", "head_dim", 128},
    {"ernie4_5_moe", "num_key_value_heads", 4},
    {"exaone4", "sliding_window", 4096},
    {"exaone4", "sliding_window_pattern", 4},
    {"exaone4", "num_key_value_heads", 32},
    {"falcon", "multi_query", true},
    {"falcon_h1", "num_key_value_heads", 8},
    {"gemma", "hidden_size", 3072, nested},
    {"gemma", "num_hidden_layers", 28, nested},
    {"gemma", "num_attention_heads", 16, nested},
    {"gemma", "num_key_value_heads", 16},
    {"gemma", "head_dim", 256},
    {"gemma2", "hidden_size", 2304, nested},
    {"gemma2", "num_hidden_layers", 26, nested},
    {"gemma2", "num_attention_heads", 8, nested},
    {"gemma2", "num_key_value_heads", 4},
    {"gemma2", "head_dim", 256},
    {"gemma2", "query_pre_attn_scalar", 256},
    {"gemma2", "attn_logit_softcapping", 50.0},
    {"gemma2", "sliding_window", 4096},
    {"gemma2", "sliding_window_pattern", 2},
    {"gemma3_text", "hidden_size", 2304, nested},
    {"gemma3_text", "num_hidden_layers", 26, nested},
    {"gemma3_text", "num_attention_heads", 8, nested},
    {"gemma3_text", "num_key_value_heads", 4},
    {"gemma3_text", "head_dim", 256},
    {"gemma3_text", "query_pre_attn_scalar", 256},
    {"gemma3_text", "sliding_window", 4096},
    {"gemma3_text", "sliding_window_pattern", 6},
    {"gemma3n_text", "hidden_size", 2048, nested},
    {"gemma3n_text", "num_hidden_layers", 35, nested},
    {"gemma3n_text", "num_attention_heads", 8, nested},
    {"gemma3n_text", "num_key_value_heads", 2},
    {"gemma3n_text", "head_dim", 256},
    {"gemma3n_text", "sliding_window", 512},
    {"gemma3n_text", "sliding_window_pattern", 5},
    {"gemma3n_text", "num_kv_shared_layers", 15},
    {"gemma4_text", "hidden_size", 2304, nested},
    {"gemma4_text", "num_hidden_layers", 30, nested},
    {"gemma4_text", "num_attention_heads", 8, nested},
    {"gemma4_text", "num_key_value_heads", 4},
    {"gemma4_text", "head_dim", 256},
    {"gemma4_text", "global_head_dim", 512},
    {"gemma4_text", "sliding_window", 512},
    {"gemma4_text", "sliding_window_pattern", 6},
    {"glm", "num_key_value_heads", 2},
    {"glm", "head_dim", 128},
    {"glm4", "num_key_value_heads", 2},
    {"glm4", "head_dim", 128},
    {"glm4_moe", "num_key_value_heads", 8},
    {"glm4v_text", "hidden_size", 4096, nested},
    {"glm4v_text", "num_hidden_layers", 40, nested},
    {"glm4v_text", "num_attention_heads", 32, nested},
    {"glm4v_text", "num_key_value_heads", 2},
    {"glm_moe_dsa", "index_topk", 2048},
    {"gpt_bigcode", "multi_query", true},
    {"gpt_neo", "window_size", 256},
    {"gpt_neo", "attention_types", List{R"([[["global", "local"], 12]])"}, null_too},
    {"gpt_oss", "head_dim", 64},
    {"gpt_oss", "sliding_window", 128},
    {"gpt_oss", "sliding_window_pattern", 2},
    {"gpt_oss", "num_key_value_heads", 8},
    {"granite", "attention_multiplier", 1.0},
    {"granitemoe", "attention_multiplier", 1.0},
    {"granitemoehybrid", "attention_multiplier", 1.0},
    {"granitemoeshared", "attention_multiplier", 1.0},
    {"grok-1", "attn_output_multiplier", 0.08838834764831845},
    {"grok-1", "max_attn_value", 30.0},
    {"helium", "num_key_value_heads", 20},
    {"helium", "head_dim", 128},
    {"jamba", "num_key_value_heads", 8},
    {"jamba", "attn_layer_period", 8},
    {"jamba", "attn_layer_offset", 4},
    {"lfm2", "num_key_value_heads", 8},
    {"llama", "hidden_size", 4096, nested},
    {"llama", "num_hidden_layers", 32, nested},
    {"llama", "num_attention_heads", 32, nested},
    {"llama4_text", "hidden_size", 5120, nested},
    {"llama4_text", "num_hidden_layers", 48, nested},
    {"llama4_text", "num_attention_heads", 40, nested},
    {"llama4_text", "num_key_value_heads", 8},
    {"llama4_text", "head_dim", 128},
    {"llama4_text", "attention_chunk_size", 8192},
    {"minimax", "num_key_value_heads", 8},
    {"ministral", "num_key_value_heads", 8},
    {"ministral", "sliding_window", 4096},
    {"ministral3", "num_key_value_heads", 8},
    {"ministral3", "head_dim", 128},
    {"mistral", "hidden_size", 4096, nested},
    {"mistral", "num_hidden_layers", 32, nested},
    {"mistral", "num_attention_heads", 32, nested},
    {"mistral", "num_key_value_heads", 8},
    {"mistral", "sliding_window", 4096},
    {"mixtral", "num_key_value_heads", 8},
    {"mllama_text_model", "hidden_size", 4096, nested},
    {"mllama_text_model", "num_hidden_layers", 40, nested},
    {"mllama_text_model", "num_attention_heads", 32, nested},
    {"mllama_text_model", "num_key_value_heads", 8},
    {"mllama_text_model", "cross_attention_layers", List{"[3, 8, 13, 18, 23, 28, 33, 38]"}, null_too},
    {"modernbert", "local_attention", 128},
    {"modernbert", "global_attn_every_n_layers", 3},
    {"mpt", "attn_config.alibi", true},
    {"nemotron_h", "num_key_value_heads", 8},
    {"nemotron_h", "head_dim", 128},
    {"olmo3", "sliding_window", 4096},
    {"olmo3", "sliding_window_pattern", 4},
    {"phimoe", "num_key_value_heads", 8},
    {"qwen", "use_logn_attn", true},
    {"qwen2", "hidden_size", 4096, nested},
    {"qwen2", "num_hidden_layers", 32, nested},
    {"qwen2", "num_attention_heads", 32, nested},
    {"qwen2", "num_key_value_heads", 32},
    {"qwen2", "use_sliding_window", false},
    {"qwen2", "max_window_layers", 28},
    {"qwen2", "sliding_window", 4096},
    {"qwen2_5_omni_text", "hidden_size", 3584, nested},
    {"qwen2_5_omni_text", "num_hidden_layers", 28, nested},
    {"qwen2_5_omni_text", "num_attention_heads", 28, nested},
    {"qwen2_5_omni_text", "num_key_value_heads", 4},
    {"qwen2_5_omni_text", "use_sliding_window", false},
    {"qwen2_5_omni_text", "sliding_window", 32768},
    {"qwen2_5_omni_text", "max_window_layers", 28},
    {"qwen2_5_vl", "use_sliding_window", false},
    {"qwen2_5_vl", "max_window_layers", 80},
    {"qwen2_5_vl", "num_key_value_heads", 8},
    {"qwen2_5_vl", "sliding_window", 4096},
    {"qwen2_5_vl_text", "hidden_size", 8192, nested},
    {"qwen2_5_vl_text", "num_hidden_layers", 80, nested},
    {"qwen2_5_vl_text", "num_attention_heads", 64, nested},
    {"qwen2_5_vl_text", "num_key_value_heads", 8},
    {"qwen2_5_vl_text", "use_sliding_window", false},
    {"qwen2_5_vl_text", "sliding_window", 4096},
    {"qwen2_5_vl_text", "max_window_layers", 80},
    {"qwen2_moe", "use_sliding_window", false},
    {"qwen2_moe", "max_window_layers", 28},
    {"qwen2_moe", "num_key_value_heads", 16},
    {"qwen2_moe", "sliding_window", 4096},
    {"qwen2_vl", "use_sliding_window", false},
    {"qwen2_vl", "max_window_layers", 80},
    {"qwen2_vl", "num_key_value_heads", 8},
    {"qwen2_vl", "sliding_window", 4096},
    {"qwen2_vl_text", "hidden_size", 8192, nested},
    {"qwen2_vl_text", "num_hidden_layers", 80, nested},
    {"qwen2_vl_text", "num_attention_heads", 64, nested},
    {"qwen2_vl_text", "num_key_value_heads", 8},
    {"qwen2_vl_text", "use_sliding_window", false},
    {"qwen2_vl_text", "sliding_window", 4096},
    {"qwen2_vl_text", "max_window_layers", 80},
    {"qwen3", "use_sliding_window", false},
    {"qwen3", "max_window_layers", 28},
    {"qwen3", "head_dim", 128},
    {"qwen3", "num_key_value_heads", 32},
    {"qwen3", "sliding_window", 4096},
    {"qwen3_moe", "use_sliding_window", false},
    {"qwen3_moe", "num_key_value_heads", 4},
    {"qwen3_moe", "sliding_window", 4096},
    {"qwen3_next", "full_attention_interval", 4},
    {"qwen3_next", "num_key_value_heads", 2},
    {"qwen3_next", "head_dim", 256},
    {"qwen3_omni_moe_text", "hidden_size", 2048, nested},
    {"qwen3_omni_moe_text", "num_hidden_layers", 28, nested},
    {"qwen3_omni_moe_text", "num_attention_heads", 28, nested},
    {"qwen3_omni_moe_text", "num_key_value_heads", 4},
    {"qwen3_vl_moe_text", "hidden_size", 2048, nested},
    {"qwen3_vl_moe_text", "num_hidden_layers", 24, nested},
    {"qwen3_vl_moe_text", "num_attention_heads", 16, nested},
    {"qwen3_vl_moe_text", "num_key_value_heads", 16},
    {"qwen3_vl_text", "hidden_size", 4096, nested},
    {"qwen3_vl_text", "num_hidden_layers", 32, nested},
    {"qwen3_vl_text", "num_attention_heads", 32, nested},
    {"qwen3_vl_text", "head_dim", 128},
    {"qwen3_vl_text", "num_key_value_heads", 32},
    {"recurrent_gemma", "attention_window_size", 2048},
    {"recurrent_gemma", "block_types", List{R"(["recurrent", "recurrent", "attention"])"}},
    {"seed_oss", "num_key_value_heads", 8},
    {"seed_oss", "head_dim", 128},
    {"smollm3", "num_key_value_heads", 4},
    {"smollm3", "use_sliding_window", false},
    {"stablelm", "num_key_value_heads", 32},
    {"starcoder2", "num_key_value_heads", 2},
    {"t5_gemma_module", "hidden_size", 2304, nested},
    {"t5_gemma_module", "num_hidden_layers", 26, nested},
    {"t5_gemma_module", "num_attention_heads", 8, nested},
    {"t5_gemma_module", "num_key_value_heads", 4},
    {"t5_gemma_module", "head_dim", 256},
    {"t5_gemma_module", "query_pre_attn_scalar", 256},
    {"t5_gemma_module", "attn_logit_softcapping", 50.0},
    {"t5_gemma_module", "sliding_window", 4096},
    {"t5_gemma_module", "sliding_window_pattern", 2},
    {"zamba", "num_key_value_heads", 16},
    {"zamba", "attn_layer_period", 6},
    {"zamba", "attn_layer_offset", 4},
};

bool covers(Applies applies, Silence silence) {
    switch (silence) {
        case Silence::top_level:
            return applies != Applies::nested_only;
        case Silence::nested:
            return true;
        case Silence::null:
            break;
    }
    return applies == Applies::null_too;
}

}  // namespace

std::optional<json> class_default(std::string_view model_type, std::string_view name, Silence silence) {
    const auto* found = std::ranges::find_if(kClassDefaults, [&](const ClassDefault& entry) {
        return entry.model_type == model_type && entry.name == name;
    });
    if (found == std::end(kClassDefaults) || !covers(found->applies, silence)) return std::nullopt;
    return std::visit([](auto value) { return as_json(value); }, found->value);
}

}  // namespace attnsmith::problem
