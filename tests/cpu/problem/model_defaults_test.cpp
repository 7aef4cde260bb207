// What transformers' configuration classes supply where a config.json is silent.
#include <string>
#include <utility>
#include <vector>

#include "attnsmith/spec.hpp"
#include "expect.hpp"
#include "model_summary.hpp"

using namespace attnsmith;
using namespace attnsmith::test;

TEST_CASE("what a nested part leaves out is its class's default, with a note", "[model]") {
    // gemma-3-4b-it as published: heads and head_dim are not in the file.
    const Model gemma = parse_model(R"({"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config":
        {"hidden_size": 2560, "model_type": "gemma3_text", "num_hidden_layers": 34, "sliding_window": 1024}})");
    CHECK(summary(gemma) == both({"sliding_attention", 29, 8, 4, 256, 256, 0.0625, 1023},
                                 {"full_attention", 5, 8, 4, 256, 256, 0.0625}));
    CHECK(has_note(gemma, "text_config.num_attention_heads is not given: 8 is the default of gemma3_text"));
    // llava-1.5.
    CHECK(summary(parse_model(R"({"model_type": "llava", "text_config": {"model_type": "llama"}})")) ==
          both({"full_attention", 32, 32, 32, 128, 128, rsqrt(128)}));
    // A file's own top level has them, or it is broken.
    CHECK(refused([] {
              (void)parse_model(R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 2})");
          }).field() == "num_attention_heads");
    // What changes the answer is known at any level.
    CHECK(summary(parse_model(R"({"model_type": "gemma2", "hidden_size": 2304, "num_attention_heads": 8,
                                  "num_key_value_heads": 4, "num_hidden_layers": 2})")) ==
          both({"sliding_attention", 1, 8, 4, 256, 256, 0.0625, 4095, 50.0},
               {"full_attention", 1, 8, 4, 256, 256, 0.0625, {}, 50.0}));
}

TEST_CASE("what a known type leaves out is its class's default", "[model]") {
    const auto first = [](const std::string& type, const std::string& members = "") {
        const Model model = parse_model(of_type(type, members));
        REQUIRE_FALSE(model.attentions.empty());
        return model.attentions[0];
    };
    const auto kv_heads = [&](const std::string& type, const std::string& members = "") {
        return first(type, members).request.spec.kv_heads;
    };
    CHECK(first("mpt").request.spec.alibi);
    CHECK(first("mpt", R"(, "attn_config": {"attn_pdrop": 0})").request.spec.alibi);
    CHECK_FALSE(first("mpt", R"(, "attn_config": {"alibi": false})").request.spec.alibi);
    CHECK(kv_heads("gpt_bigcode") == 1);
    CHECK(kv_heads("gpt_bigcode", R"(, "multi_query": false)") == 16);
    CHECK(kv_heads("mistral") == 8);
    CHECK(kv_heads("mistral", R"(, "num_key_value_heads": null)") == 16);
    CHECK(kv_heads("mixtral") == 8);
    CHECK(kv_heads("starcoder2") == 2);
    CHECK(first("granite").request.spec.scale == 1.0);
    CHECK(first("granitemoe").request.spec.scale == 1.0);
    for (const char* type : {"qwen3_vl_text", "glm", "ernie4_5", "seed_oss", "helium"}) {
        INFO(type);
        CHECK(first(type, R"(, "num_key_value_heads": 4)").request.spec.head_dim_qk == 128);
    }
    // Their classes divide the hidden size.
    for (const char* type : {"qwen3_vl_moe_text", "glm4_moe"}) {
        INFO(type);
        CHECK(first(type).request.spec.head_dim_qk == 64);
    }
    CHECK(first("seed_oss", R"(, "head_dim": null)").request.spec.head_dim_qk == 64);
    CHECK(first("nemotron_h", R"(, "hybrid_override_pattern": "MMMMMMMMMMM*")").request.spec.head_dim_qk ==
          128);
    const std::pair<const char*, int> kv_defaults[] = {
        {"falcon_h1", 8},       {"ernie4_5_moe", 4},      {"glm4v_text", 2},          {"qwen2_vl_text", 8},
        {"qwen2_5_vl_text", 8}, {"qwen2_5_omni_text", 4}, {"qwen3_omni_moe_text", 4}, {"t5_gemma_module", 4}};
    for (const auto& [type, heads] : kv_defaults) {
        INFO(type);
        CHECK(kv_heads(type) == heads);
    }
    const AttentionSpec module = first("t5_gemma_module").request.spec;
    CHECK(module.softcap == 50.0);
    CHECK(module.window_left == 4095);
    CHECK(module.head_dim_qk == 256);
    CHECK(has_note(parse_model(of_type("granite")), "attention_multiplier is not given: 1"));
    for (const char* type : {"longformer", "big_bird"}) {
        const Model refused_type = parse_model(of_type(type));
        CHECK(refused_type.attentions.empty());
        CHECK(refused_type.unsupported.size() == 1);
    }
}

TEST_CASE("class defaults of layer patterns", "[model]") {
    const auto layers = [](const std::string& type, const std::string& members) {
        const Model model = parse_model(R"({"model_type": ")" + type +
                                        R"(", "hidden_size": 1024, "num_attention_heads": 8, "head_dim": 128,
                                            "num_hidden_layers": 12)" +
                                        members + "}");
        std::string text;
        for (const ModelAttention& attention : model.attentions) {
            if (attention.phase == "prefill")
                text += attention.name + " " + std::to_string(attention.layers) + ";";
        }
        return text;
    };
    CHECK(layers("cohere2", "") == "sliding_attention/prefill 9;full_attention/prefill 3;");
    CHECK(layers("gemma3_text", "") == "sliding_attention/prefill 10;full_attention/prefill 2;");
    CHECK(layers("gemma3_text", R"(, "sliding_window_pattern": 3)") ==
          "sliding_attention/prefill 8;full_attention/prefill 4;");
    // Older files have it with layer_types; the class reads no such field.
    CHECK(layers("gemma3_text", R"(, "_sliding_window_pattern": 3)") ==
          "sliding_attention/prefill 10;full_attention/prefill 2;");
    CHECK(layers("gpt_oss", "") == "sliding_attention/prefill 6;full_attention/prefill 6;");
    CHECK(layers("qwen2", R"(, "num_key_value_heads": 8, "sliding_window": 4096)") ==
          "full_attention/prefill 12;");
    CHECK(layers("qwen2",
                 R"(, "num_key_value_heads": 8, "sliding_window": 4096, "use_sliding_window": true)") ==
          "full_attention/prefill 12;");
    CHECK(layers("mistral", "") == "sliding_attention/prefill 12;");
    CHECK(layers("mistral", R"(, "sliding_window": null)") == "full_attention/prefill 12;");
    CHECK(layers("ministral", "") == "sliding_attention/prefill 12;");
    CHECK(layers("qwen3_next", "") == "full_attention/prefill 3;");
    CHECK(layers("jamba", "") == "full_attention/prefill 1;");
    CHECK(layers("gemma3n_text", "") == "sliding_attention/prefill 10;full_attention/prefill 2;");
    CHECK(layers("recurrent_gemma", "") == "sliding_attention/prefill 4;");
    CHECK(layers("gpt_neo", "") == "full_attention/prefill 6;sliding_attention/prefill 6;");
    CHECK(layers("mllama_text_model", "") == "full_attention/prefill 10;");
    CHECK(layers("mllama_text_model", R"(, "cross_attention_layers": null)") == "full_attention/prefill 10;");
    CHECK(layers("gpt_neo", R"(, "attention_types": null)") ==
          "full_attention/prefill 6;sliding_attention/prefill 6;");
    // A window that a class's use_sliding_window turns off.
    for (const char* type :
         {"qwen2_vl", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "smollm3"}) {
        INFO(type);
        CHECK(layers(type, R"(, "sliding_window": 32768)") == "full_attention/prefill 12;");
    }
    CHECK(layers("qwen2",
                 R"(, "num_key_value_heads": 8, "use_sliding_window": true, "max_window_layers": 4)") ==
          "full_attention/prefill 4;sliding_attention/prefill 8;");
    CHECK(layers("qwen3_moe", R"(, "use_sliding_window": true, "max_window_layers": 12)") ==
          "sliding_attention/prefill 12;");
    CHECK(layers("dots1", R"(, "num_key_value_heads": 8, "max_window_layers": 4)") ==
          "full_attention/prefill 4;sliding_attention/prefill 8;");
    CHECK(layers("t5_gemma_module", "") == "sliding_attention/prefill 6;full_attention/prefill 6;");
    // Gemma 4's last layer sees all, whatever the file says of it.
    CHECK(layers("gemma4_text", R"(, "global_head_dim": 256, "layer_types":
              ["full_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
               "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
               "sliding_attention", "sliding_attention"])") ==
          "full_attention/prefill 2;sliding_attention/prefill 10;");
}

TEST_CASE("Zamba's shared attention begins with the third layer", "[model]") {
    const auto attention_layers = [](int layers, const std::string& members) {
        const Model model = parse_model(
            R"({"model_type": "zamba", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": )" +
            std::to_string(layers) + members + "}");
        REQUIRE(model.attentions.size() == 2);
        return model.attentions[0].layers;
    };
    CHECK(attention_layers(76, "") == 13);
    CHECK(attention_layers(76, R"(, "attn_layer_period": 6, "attn_layer_offset": 4)") == 13);
    CHECK(attention_layers(3, "") == 1);
}
