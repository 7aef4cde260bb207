// Config files that no plan can be made of, and what the error says.
#include <string>

#include "attnsmith/spec.hpp"
#include "expect.hpp"
#include "model_summary.hpp"

using namespace attnsmith;
using namespace attnsmith::test;

TEST_CASE("bad configs are refused by the field", "[model]") {
    struct Bad {
        std::string config;
        std::string field;
        std::string message;
    };
    const Bad cases[] = {
        // No attention.
        {R"({"model_type": "resnet", "depths": [3, 4, 6, 3]})", "model_type", "a model with attention"},
        {R"({"model_type": "mamba2", "num_heads": 128, "head_dim": 64, "hidden_size": 4096, "num_hidden_layers": 64})",
         "model_type", "a model with attention"},
        {R"({"model_type": "unheard_of", "hidden_size": 512})", "num_attention_heads",
         "the config, of model_type unheard_of, describes no attention"},
        {"{}", "num_attention_heads", "the config describes no attention"},
        {R"({"num_attention_heads": 8, "num_hidden_layers": 2})", "hidden_size", "describes no attention"},
        {R"({"num_attention_heads": 8, "hidden_size": 512})", "num_hidden_layers", "describes no attention"},
        {R"({"num_attention_heads": 8, "num_hidden_layers": 2, "kv_lora_rank": 512})", "qk_nope_head_dim",
         "is missing"},
        // A plain decoder would be the wrong guess.
        {of_type("bamba"), "attn_layer_indices", "the attention of bamba is"},
        {of_type("nemotron_h"), "hybrid_override_pattern", "is missing"},
        {of_type("zamba2"), "layers_block_type", "is missing"},
        {R"({"model_type": "nemotron_h", "hidden_size": 4096, "num_attention_heads": 32,
             "hybrid_override_pattern": ""})",
         "num_hidden_layers", "is missing"},
        {of_type("minimax"), "layer_types", "layer_types or attn_type_list"},
        {of_type("lfm2"), "layer_types", "is missing"},
        {of_type("granitemoehybrid"), "layer_types", "is missing"},
        {of_type("deepseek_v2"), "kv_lora_rank", "is missing"},
        {of_type("deepseek_v3"), "kv_lora_rank", "is missing"},
        {of_type("deepseek_v32"), "kv_lora_rank", "is missing"},
        {of_type("glm_moe_dsa"), "kv_lora_rank", "is missing"},
        {of_type("minicpm3"), "kv_lora_rank", "is missing"},
        {of_type("jamba", R"(, "attn_layer_period": null)"), "attn_layer_period", "null is not accepted"},
        {of_type("zamba", R"(, "attn_layer_period": null)"), "attn_layer_period", "null is not accepted"},
        {of_type("llama4_text", R"(, "attention_chunk_size": null)"), "attention_chunk_size",
         "null is not accepted"},
        {of_type("gemma3_text", R"(, "sliding_window": null)"), "sliding_window", "10 layers slide"},
        {untyped_with(
             R"("layer_types": ["sliding_attention", "full_attention", "full_attention", "full_attention",
            "full_attention", "full_attention", "full_attention", "full_attention", "full_attention", "full_attention",
            "full_attention", "full_attention"])"),
         "sliding_window", "1 layers slide"},
        // Lists of layers that are none of the model's.
        {of_type("nemotron_h", R"(, "hybrid_override_pattern": "MMMMMMMMMMMX")"), "hybrid_override_pattern",
         "*, M, - or E"},
        {of_type("bamba", R"(, "attn_layer_indices": [4, 99])"), "attn_layer_indices", "from 0 to 11"},
        {of_type("bamba", R"(, "attn_layer_indices": [-1])"), "attn_layer_indices", "from 0 to 11"},
        {of_type("lfm2", R"(, "full_attn_idxs": [12])"), "full_attn_idxs", "from 0 to 11"},
        {of_type("jamba", R"(, "attn_layer_period": 8, "attn_layer_offset": 9)"), "attn_layer_offset",
         "from 0 to 7"},
        {of_type("jamba", R"(, "attn_layer_offset": null)"), "attn_layer_offset", "from 0 to 7"},
        {of_type("jamba", R"(, "attn_layer_offset": -1)"), "attn_layer_offset", "from 0 to 7"},
        {of_type("gemma4_text", R"(, "per_layer_config": {"12": {"head_dim": 512}})"), "per_layer_config",
         "one of the 12 layers"},
        {of_type("gemma4_text", R"(, "per_layer_config": {"1": {"head_dim": 0}})"),
         "per_layer_config.1.head_dim", "from 1"},
        {of_type("gemma4_text", R"(, "per_layer_config": [1])"), "per_layer_config", "an object"},
        // A wrapper of code that is nowhere to be read.
        {of_type("internvl_chat"), "model_type", "the language model that internvl_chat holds"},
        {R"({"model_type": "internvl_chat", "llm_config": {"hidden_size": 64, "num_attention_heads": 1,
             "num_hidden_layers": 1}})",
         "llm_config.model_type", "the language model that internvl_chat holds"},
        // Values.
        {untyped_with(R"("use_bidirectional_attention": 1)"), "use_bidirectional_attention", "true, false"},
        {untyped_with(R"("use_bidirectional_attention": "ALL")"), "use_bidirectional_attention",
         "true, false"},
        {untyped_with(R"("head_dim": 0)"), "head_dim", "from 1"},
        {untyped_with(R"("head_dim": -64)"), "head_dim", "from 1"},
        {untyped_with(R"("head_dim": "64")"), "head_dim", "an integer"},
        {untyped_with(R"("head_dim": 64.0)"), "head_dim", "an integer"},
        {untyped_with(R"("head_dim": 99999999999999999999)"), "head_dim", "an integer"},
        {untyped_with(R"("head_dim": 18446744073709551615)"), "head_dim", "an integer"},
        {untyped_with(R"("num_key_value_heads": 3)"), "num_key_value_heads",
         "a divisor of the 8 query heads"},
        {untyped_with(R"("num_key_value_heads": 0)"), "num_key_value_heads", "from 1"},
        {untyped_with(R"("num_key_value_heads": [1, 2])"), "num_key_value_heads", "a list of 2"},
        {untyped_with(R"("sliding_window": 0)"), "sliding_window", "from 1"},
        {untyped_with(R"("sliding_window": "4k")"), "sliding_window", "an integer"},
        {untyped_with(R"("sliding_window": 9, "use_sliding_window": 1)"), "use_sliding_window",
         "true or false"},
        {untyped_with(R"("sliding_window": 9, "max_window_layers": -1)"), "max_window_layers", "from 0"},
        {untyped_with(R"("sliding_window": 9, "sliding_window_pattern": 0)"), "sliding_window_pattern",
         "from 1"},
        {untyped_with(R"("sliding_window": 9, "sliding_window_pattern": "")"), "sliding_window_pattern",
         "from 1"},
        {untyped_with(R"("sliding_window": 9, "sliding_window_pattern": "6")"), "sliding_window_pattern",
         "letters L and G"},
        {of_type("exaone4",
                 R"(, "num_key_value_heads": 8, "sliding_window": 9, "sliding_window_pattern": "LLLg")"),
         "sliding_window_pattern", "letters L and G"},
        {of_type("gemma3_text", R"(, "sliding_window": 9, "sliding_window_pattern": "LLLG")"),
         "sliding_window_pattern", "a number of layers from 1"},
        {of_type("llama", R"(, "is_encoder_decoder": 1)"), "is_encoder_decoder", "true or false"},
        {of_type("llama", R"(, "is_encoder_decoder": "true")"), "is_encoder_decoder", "true or false"},
        {of_type("deepseek_v3", R"(, "rope_scaling": "yarn")"), "rope_scaling", "an object"},
        {of_type("deepseek_v3", R"(, "rope_parameters": [{"factor": 40}])"), "rope_parameters", "an object"},
        {of_type("llama", R"(, "quantization_config": "fp8")"), "quantization_config", "an object"},
        {of_type("llama", R"(, "text_config": "x")"), "text_config", "an object"},
        {R"({"model_type": "llava", "text_config": {"model_type": "llama", "hidden_size": 64,
             "num_attention_heads": 1, "num_hidden_layers": 1, "rope_scaling": 7}})",
         "text_config.rope_scaling", "an object"},
        {untyped_with(R"("layer_types": "full_attention")"), "layer_types", "a list"},
        {untyped_with(R"("layer_types": [])"), "layer_types", "a list"},
        {untyped_with(R"("layer_types": [1])"), "layer_types", "a list of strings"},
        {untyped_with(R"("layer_types": ["full_attention"])"), "layer_types", "each of the 12 layers"},
        {untyped_with(R"("attention_types": [["global", 12]])"), "attention_types", "a list"},
        {untyped_with(R"("attention_types": [[["global"], 99999999999]])"), "attention_types", "pairs"},
        {untyped_with(R"("attn_type_list": ["1"])"), "attn_type_list", "a list of integers"},
        {untyped_with(R"("attn_layer_period": 0)"), "attn_layer_period", "from 1"},
        {untyped_with(R"("hybrid_override_pattern": "M*")"), "hybrid_override_pattern",
         "each of the 12 layers"},
        {untyped_with(R"("block_configs": 3)"), "block_configs", "for each layer"},
        {untyped_with(R"("block_configs": [{"attention": {"n_heads_in_group": 8}}])"), "block_configs",
         "for each layer"},
        {untyped_with(R"("num_hidden_layers_": 0, "block_configs": [1,1,1,1,1,1,1,1,1,1,1,1])"),
         "block_configs", "for each layer"},
        {R"({"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 1, "block_configs":
             [{"attention": {"n_heads_in_group": 3}}]})",
         "block_configs[0].attention.n_heads_in_group", "a divisor of the 8 query heads"},
        {untyped_with(R"("num_key_value_heads_per_layer": [8])"), "num_key_value_heads_per_layer",
         "for each layer"},
        {untyped_with(R"("num_key_value_heads_per_layer": [8,8,8,8,8,8,8,8,8,8,8,0])"),
         "num_key_value_heads_per_layer[11]", "for each layer"},
        {untyped_with(R"("num_query_heads": [8, 8], "head_dim": 64)"), "num_query_heads", "for each layer"},
        {untyped_with(R"("num_kv_heads": [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8.5])"), "num_kv_heads[11]",
         "for each layer"},
        {untyped_with(R"("cross_attention_layers": ["3"])"), "cross_attention_layers", "a list of integers"},
        {untyped_with(R"("sliding_window_layers": 3)"), "sliding_window_layers", "a list of integers"},
        {untyped_with(R"("attn_logit_softcapping": 0)"), "attn_logit_softcapping", "above 0"},
        {untyped_with(R"("attn_logit_softcapping": true)"), "attn_logit_softcapping", "a finite number"},
        {untyped_with(R"("query_pre_attn_scalar": -1)"), "query_pre_attn_scalar", "above 0"},
        {untyped_with(R"("head_dim": NaN)"), "head_dim", "NaN is not accepted"},
        {untyped_with(R"("num_key_value_heads": Infinity)"), "num_key_value_heads",
         "Infinity is not accepted"},
        {untyped_with(R"("sliding_window": -Infinity)"), "sliding_window", "-Infinity is not accepted"},
        {untyped_with(R"("attn_logit_softcapping": NaN)"), "attn_logit_softcapping", "a finite number"},
        {untyped_with(R"("query_pre_attn_scalar": Infinity)"), "query_pre_attn_scalar", "a finite number"},
        {untyped_with(R"("position_embedding_type": NaN)"), "position_embedding_type", "a string"},
        {untyped_with(R"("attention_multiplier": 1e-60)"), "attention_multiplier", "a finite number above 0"},
        {R"({"hidden_size": 100, "num_attention_heads": 8, "num_hidden_layers": 2})", "hidden_size",
         "a multiple of the 8 heads"},
        {R"({"hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 1, "torch_dtype": "float8_e4m3fn"})",
         "torch_dtype", "bfloat16, float16 or float32"},
        {R"({"hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 1, "torch_dtype": 16})",
         "torch_dtype", "a string"},
        {R"({"hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 2000000000})",
         "num_hidden_layers", "at most 10000"},
        // Text.
        {"", "config.json", "empty"},
        {"[]", "config.json", "a JSON object"},
        {"{\"a\": }", "config.json", "line 1, column 7"},
        {"{NaN: 1}", "config.json", "the key NaN is no string"},
        {"{\"num_attention_heads\": 8, \"num_attention_heads\": 9}", "num_attention_heads", "given twice"},
        {R"({"text_config": {"num_attention_heads": -1}})", "text_config.num_attention_heads", "from 1"},
    };
    for (const Bad& bad : cases) {
        INFO(bad.config);
        const InvalidRequest error = refused([&] { (void)parse_model(bad.config); });
        INFO(error.what());
        CHECK(error.field() == bad.field);
        CHECK(contains(error.what(), bad.message));
    }
}
