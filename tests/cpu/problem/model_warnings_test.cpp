// What a model's reader says about what it does not know.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "attnsmith/error.hpp"
#include "attnsmith/spec.hpp"
#include "expect.hpp"
#include "model_summary.hpp"

using namespace attnsmith;
using namespace attnsmith::test;

namespace {

using Fields = std::vector<std::string>;

std::vector<Refusal> strictly_refused(const std::string& config) {
    ModelOptions options;
    options.strict = true;
    try {
        (void)parse_model(config, options);
    } catch (const Unsupported& error) {
        CHECK_FALSE(error.refusals().empty());
        return error.refusals();
    }
    return {};
}

// For types whose class has more KV heads than of_type() has heads.
std::string heads_of(const std::string& type) {
    const bool has_more = type == "qwen2" || type == "qwen3" || type == "dots1";
    return has_more ? R"(, "num_key_value_heads": 16)" : "";
}

}  // namespace

TEST_CASE("an invented model type is warned of by name, with the fields that nobody read", "[model]") {
    const std::string config =
        R"({"model_type": "quasar", "hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 12,
            "torch_dtype": "bfloat16", "attention_gravity": 0.5, "numGhostKeys": 4, "lensing": {"kv_bend": 2},
            "horizon_blocks": [{"window": 3}], "vocab_size": 7, "spin": 2, "window_spacing": 0})";
    const Model model = parse_model(config);
    CHECK(summary(model) == both(kLlama));
    CHECK(warned(model, WarningKind::unknown_type) == Fields{"model_type"});
    CHECK(warned(model, WarningKind::unread_field) ==
          Fields{"attention_gravity", "horizon_blocks", "lensing.kv_bend", "numGhostKeys"});
    CHECK(model.warnings.size() == 5);
    CHECK(contains(model.warnings[0].text, "attention_gravity (0.5)"));
    CHECK(contains(model.warnings[0].text, "wrong results"));
    CHECK(contains(model.warnings[4].text, "quasar"));
    const std::vector<Refusal> refusals = strictly_refused(config);
    REQUIRE(refusals.size() == 5);
    CHECK(refusals[3].candidate == "numGhostKeys");
    CHECK(refusals[4].candidate == "model_type");
}

TEST_CASE("a field that nobody reads is a warning of a known type too", "[model]") {
    const Fields kNone;
    const std::pair<std::string, Fields> cases[] = {
        {"", kNone},
        {R"("attention_window_decay": 0.9)", {"attention_window_decay"}},
        {R"("dual_chunk_attention_config": {"chunk_size": 8192})",
         {"dual_chunk_attention_config.chunk_size"}},
        {R"("attnTemperature": 2)", {"attnTemperature"}},
        {R"("num_sink_tokens": 4)", {"num_sink_tokens"}},
        {R"("use_relative_bias": true)", {"use_relative_bias"}},
        {R"("attn_norm": "sigmoid")", {"attn_norm"}},
        {R"("mixer_types": ["a"])", {"mixer_types"}},
        {R"("use_differential": true)", {"use_differential"}},
        {R"("lambda_init": 0.8)", {"lambda_init"}},
        {R"("moba_topk": 4)", {"moba_topk"}},
        {R"("nsa": {"block": 64})", {"nsa.block"}},
        {R"("index_block_rule": 16)", {"index_block_rule"}},
        {R"("compress_rates": [4])", {"compress_rates"}},
        {R"("linear_conv_kernel_dim": 4)", {"linear_conv_kernel_dim"}},
        {R"("kda_lower_bound": -5)", {"kda_lower_bound"}},
        {R"("pos_att_type": "p2c")", {"pos_att_type"}},
        // What the reader knows of other types, and a Llama does not have.
        {R"("attn_output_multiplier": 0.1)", {"attn_output_multiplier"}},
        {R"("attn_layer_offset": 4)", {"attn_layer_offset"}},
        {R"("conv_window": 2)", {"conv_window"}},
        {R"("linear_num_key_heads": 16)", {"linear_num_key_heads"}},
        {R"("local_attention": 128)", {"local_attention"}},
        {R"("mamba_d_state": 16)", {"mamba_d_state"}},
        {R"("multi_query_group_num": 2)", {"multi_query_group_num"}},
        {R"("num_global_key_value_heads": 2)", {"num_global_key_value_heads"}},
        {R"("num_swa_attention_heads": 16)", {"num_swa_attention_heads"}},
        {R"("qk_nope_head_dim": 128)", {"qk_nope_head_dim"}},
        {R"("use_logn_attn": true)", {"use_logn_attn"}},
        {R"("logn": true)", {"logn"}},
        {R"("attn_temperature_len": 1024)", {"attn_temperature_len"}},
        // Two names of one thing that disagree: the second is not read.
        {R"("num_key_value_heads": 8, "num_kv_heads": 4)", {"num_kv_heads"}},
        {R"("num_key_value_heads": 8, "num_kv_heads": 8)", kNone},
        {R"("head_dim": 128, "kv_channels": null)", kNone},
        // Off.
        {R"("attention_window_decay": null, "kv_bend": false, "sink_count": 0, "mask_rule": "", "q_list": [])",
         kNone},
        // Fields of daily life.
        {R"("attention_dropout": 0.1, "attention_bias": true, "rope_scaling": {"factor": 2, "key": 1},
            "rope_theta": 1e6, "max_position_embeddings": 4096, "initializer_range": 0.02, "use_cache": true,
            "mask_token_id": 4, "lm_head_bias": true,
            "quantization_config": {"quant_method": "fp8", "kv_cache_scheme": null, "config_groups": {"head": 1}},
            "auto_map": {"AutoModelForCausalLM": "modeling_llama.LlamaForCausalLM"}, "attn_implementation": "eager")",
         kNone},
        {R"("return_dict": true, "layer_scale_init_value": 0.1, "mixer_rms_eps": 1e-6)", kNone},
        // A key with a dot is no field of an object, though it may look like one.
        {R"("attn_config.prefix_lm": true)", {"attn_config.prefix_lm"}},
        // A name that is not for a terminal.
        {R"("kv\u001b[31m": 4)", {R"("kv\u001b[31m")"}},
    };
    for (const auto& [members, fields] : cases) {
        INFO(members);
        const Model model = parse_model(llama_with(members));
        CHECK(summary(model).size() == 2);
        CHECK(warned(model, WarningKind::unread_field) == fields);
        CHECK(model.warnings.size() == fields.size());
        CHECK(strictly_refused(llama_with(members)).size() == fields.size());
    }
}

TEST_CASE("fields are accounted for in the language model's part and around it", "[model]") {
    const Model model =
        parse_model(R"({"model_type": "llava", "kv_bend": 2, "text_config": {"model_type": "llama",
        "hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 12, "head_rule": "x"}})");
    CHECK(warned(model, WarningKind::unread_field) == Fields{"kv_bend", "text_config.head_rule"});
    CHECK(model.warnings.size() == 2);
}

TEST_CASE("what a wrapper's field of daily life is elsewhere warns elsewhere", "[model]") {
    const auto unread = [](const std::string& type) {
        return warned(parse_model(R"({"model_type": ")" + type + R"(", "scale_factor": 4, "text_config":
            {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 1}})"),
                      WarningKind::unread_field);
    };
    CHECK(unread("idefics3").empty());
    CHECK(unread("llava") == Fields{"scale_factor"});
}

TEST_CASE("a type is known inside and around", "[model]") {
    const auto unknown = [](const std::string& outer, const std::string& inner) {
        return warned(parse_model("{" + outer + R"("text_config": {)" + inner +
                                  R"("hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 1}})"),
                      WarningKind::unknown_type);
    };
    CHECK(unknown(R"("model_type": "llava",)", R"("model_type": "llama",)").empty());
    CHECK(unknown(R"("model_type": "quasar",)", R"("model_type": "llama",)") == Fields{"model_type"});
    CHECK(unknown(R"("model_type": "llava",)", R"("model_type": "quasar",)") ==
          Fields{"text_config.model_type"});
    CHECK(unknown("", R"("model_type": "llama",)").empty());
    CHECK(unknown("", "") == Fields{"text_config.model_type"});
}

TEST_CASE("towers are warned of, whatever they are called", "[model]") {
    const std::string config =
        R"({"model_type": "qwen3_omni_moe", "talker_config": {"text_config": {"num_attention_heads": 16}},
            "code2wav_config": {"num_attention_heads": 16}, "thinker_config": {
              "audio_config": {"encoder_attention_heads": 20}, "vision_config": {"num_heads": 16},
              "smell_config": {"inner": 3, "num_heads": 2}, "text_config": {"model_type": "qwen3_omni_moe_text",
                "hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 12, "head_dim": 128}}})";
    CHECK(warned(parse_model(config), WarningKind::not_planned) ==
          Fields{"code2wav_config", "talker_config", "thinker_config.audio_config",
                 "thinker_config.smell_config", "thinker_config.vision_config"});
    CHECK(parse_model(config).warnings.size() == 5);
    CHECK(warned(parse_model(llama_with(R"("mm_vision_tower": "clip-vit-large")")),
                 WarningKind::not_planned) == Fields{"mm_vision_tower"});
}

TEST_CASE("what is planned otherwise than it is computed is said", "[model]") {
    const Model gemma = parse_model(R"({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text",
        "hidden_size": 2560, "num_hidden_layers": 34}})");
    CHECK(warned(gemma, WarningKind::approximated) == Fields{"model_type"});
    const Model vision = parse_model(untyped_with(R"("use_bidirectional_attention": "vision")"));
    CHECK(warned(vision, WarningKind::approximated) == Fields{"use_bidirectional_attention"});
    // Gemma 4's larger models say it, and its smaller ones are causal throughout.
    const auto gemma4 = [](const std::string& members) {
        return warned(parse_model(R"({"model_type": "gemma4", "text_config": {"model_type": "gemma4_text",
            "hidden_size": 1536)" +
                                  members + "}}"),
                      WarningKind::approximated);
    };
    CHECK(gemma4(R"(, "use_bidirectional_attention": "vision")") ==
          Fields{"text_config.use_bidirectional_attention"});
    CHECK(gemma4(R"(, "use_bidirectional_attention": null)").empty());
    CHECK(gemma4("").empty());
}

TEST_CASE("a field that code of the type does not read is not planned, and warned of", "[model]") {
    const auto stray = [](const std::string& type, const std::string& members) {
        return parse_model(of_type(type, heads_of(type) + ", " + members));
    };
    // Each with the types that it was once obeyed for.
    const std::pair<std::string, std::vector<std::string>> cases[] = {
        {R"("sliding_window": 64)",
         {"llama", "granite", "olmo", "olmo2", "cohere", "opt", "gpt_neox", "glm4", "seed_oss", "bert"}},
        {R"("attn_logit_softcapping": 30.0)", {"llama", "qwen2", "mistral"}},
        {R"("alibi": true)", {"llama", "mistral"}},
        {R"("position_embedding_type": "alibi")", {"llama", "mistral"}},
        {R"("position_embedding_type": "relative_key")", {"llama"}},
        {R"("query_pre_attn_scalar": 144)", {"qwen2", "gemma"}},
        {R"("attention_multiplier": 0.5)", {"llama", "qwen2"}},
        {R"("multi_query": true)", {"llama"}},
        {R"("multi_query_attention": true)", {"llama"}},
        {R"("v_head_dim": 128)", {"llama"}},
        {R"("d_head": 128)", {"llama"}},
        {R"("kv_channels": 128)", {"llama"}},
        {R"("scale_attn_weights": false)", {"llama"}},
        {R"("num_key_value_heads": 4)", {"gpt_neox", "bloom", "bert"}},
        {R"("full_attention_interval": 4)", {"qwen2"}},
        {R"("attn_layer_period": 4)", {"llama"}},
        {R"("attention_chunk_size": 64)", {"llama"}},
        {R"("layer_types": ["linear_attention"])", {"llama", "mistral"}},
        {R"("is_decoder": true)", {"modernbert", "vit"}},
        {R"("use_bidirectional_attention": true)", {"llama", "mistral"}},
        {R"("head_dim": 128)", {"gpt2", "bert", "opt"}},
        {R"("n_kv_heads": 4)", {"llama"}},
    };
    for (const auto& [members, types] : cases) {
        for (const std::string& type : types) {
            INFO(type << " " << members);
            const Model model = stray(type, members), plain = stray(type, R"("vocab_size": 7)");
            CHECK(summary(model) == summary(plain));
            CHECK(plain.warnings.empty());
            CHECK(warned(model, WarningKind::unread_field) ==
                  Fields{members.substr(1, members.find('"', 1) - 1)});
            CHECK(model.warnings.size() == 1);
            CHECK(contains(model.warnings.at(0).text, type + "'s own code does not read"));
        }
    }
}

TEST_CASE("a stray field that changes nothing warns nobody", "[model]") {
    const std::pair<std::string, std::string> cases[] = {
        {"llama", R"("sliding_window": null, "position_embedding_type": "rotary", "alibi": false)"},
        {"llama", R"("use_sliding_window": false, "max_window_layers": 28)"},
        {"glm4", R"("use_sliding_window": false, "sliding_window": 4096, "head_dim": 64)"},
        {"llama", R"("scale_attn_weights": true, "v_head_dim": 64, "query_pre_attn_scalar": 64)"},
        {"llama", R"("layer_types": ["full_attention", "full_attention"])"},
        {"gpt_neox", R"("num_key_value_heads": 16, "is_decoder": true)"},
        {"bert", R"("num_key_value_heads": 16)"},
        {"falcon_h1", R"("attn_layer_indices": [1])"},
        {"gpt_bigcode", R"("num_key_value_heads": 1)"},
        {"qwen3_moe", R"("use_sliding_window": false, "max_window_layers": 48, "sliding_window": 4096)"},
        // Types that read it, or whose code is their own.
        {"mistral", R"("sliding_window": 64)"},
        {"phi3", R"("sliding_window": 64)"},
        {"starcoder2", R"("sliding_window": 64)"},
        {"arctic", R"("sliding_window": 64)"},
        {"internlm2", R"("sliding_window": 64)"},
    };
    for (const auto& [type, members] : cases) {
        INFO(type << " " << members);
        CHECK(parse_model(of_type(type, heads_of(type) + ", " + members)).warnings.empty());
    }
}

TEST_CASE("windows are turned off and given to layers by fields that the type reads", "[model]") {
    const auto layers = [](const std::string& type, const std::string& members) {
        const Model model = parse_model(of_type(type, heads_of(type) + ", " + members));
        std::string text;
        for (const ModelAttention& attention : model.attentions) {
            if (attention.phase == "prefill")
                text += attention.name.substr(0, attention.name.find('_')) + " " +
                        std::to_string(attention.layers) + ";";
        }
        for (const std::string& field : warned(model, WarningKind::unread_field)) text += " " + field;
        return text;
    };
    const std::string off = R"("sliding_window": 64, "use_sliding_window": false)";
    for (const char* type : {"mistral", "phi3", "starcoder2"}) {
        INFO(type);
        CHECK(layers(type, off) == "sliding 12; use_sliding_window");
    }
    for (const char* type : {"gemma2", "gpt_oss"}) {
        INFO(type);
        CHECK(layers(type, off) == "sliding 6;full 6; use_sliding_window");
    }
    CHECK(layers("gemma3_text", off) == "sliding 10;full 2; use_sliding_window");
    CHECK(layers("cohere2", off) == "sliding 9;full 3; use_sliding_window");
    for (const char* type : {"qwen2", "qwen3", "qwen3_moe", "smollm3"}) {
        INFO(type);
        CHECK(layers(type, off) == "full 12;");
    }
    // Which layers.
    const std::string from = R"("sliding_window": 64, "max_window_layers": 8)";
    CHECK(layers("phi3", from) == "sliding 12; max_window_layers");
    CHECK(layers("mixtral", from) == "sliding 12; max_window_layers");
    CHECK(layers("dots1", R"("sliding_window": 64)") == "full 12;");
    CHECK(layers("dots1", from) == "full 8;sliding 4;");
    const std::string on = R"("sliding_window": 64, "use_sliding_window": true)";
    CHECK(layers("qwen3_moe", on) == "sliding 12;");
    CHECK(layers("qwen3_moe", on + R"(, "max_window_layers": 12)") == "sliding 12; max_window_layers");
    CHECK(layers("smollm3", on) == "full 9;sliding 3;");
    CHECK(layers("smollm3", on + R"(, "no_rope_layers": [1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1])") ==
          "full 11;sliding 1;");
}

TEST_CASE("two fields that say one thing and differ are told", "[model]") {
    const auto differing = [](const std::string& type, const std::string& members) {
        return warned(parse_model(of_type(type, ", " + members)), WarningKind::approximated);
    };
    CHECK(differing("llama", R"("dtype": "float16", "torch_dtype": "bfloat16")") == Fields{"torch_dtype"});
    CHECK(differing("llama", R"("dtype": "float16", "torch_dtype": "torch.float16")").empty());
    CHECK(warned(parse_model(R"({"model_type": "llava", "dtype": "float16", "torch_dtype": "bfloat16",
              "text_config": {"model_type": "llama"}})"),
                 WarningKind::approximated) == Fields{"torch_dtype"});
    CHECK(warned(parse_model(R"({"model_type": "llava", "torch_dtype": "bfloat16",
              "text_config": {"model_type": "llama", "dtype": "float16"}})"),
                 WarningKind::approximated)
              .empty());
    const std::string slides = R"("sliding_window": 64, "layer_types": ["full_attention", "full_attention",
        "full_attention", "full_attention", "full_attention", "full_attention", "full_attention", "full_attention",
        "full_attention", "full_attention", "full_attention", "sliding_attention"], "num_key_value_heads": 4,
        "use_sliding_window": )";
    CHECK(differing("qwen2", slides + "false") == Fields{"use_sliding_window"});
    CHECK(differing("qwen2", slides + "true").empty());
    ModelOptions given;
    given.dtype = DType::fp16;
    CHECK(parse_model(of_type("llama", R"(, "dtype": "float16", "torch_dtype": "bfloat16")"), given)
              .warnings.empty());
    const std::string list = R"("layer_types": ["mamba", "mamba", "mamba", "mamba", "mamba", "mamba",
        "mamba", "mamba", "mamba", "attention", "mamba", "mamba"], "attn_layer_indices": )";
    CHECK(differing("bamba", list + "[9]").empty());
    CHECK(differing("bamba", list + "[9, 10]") == Fields{"attn_layer_indices"});
    CHECK(differing("bamba", list + "[9, 99]") == Fields{"attn_layer_indices"});
}

TEST_CASE("code that a model brings in place of its type's is warned of", "[model]") {
    const auto fields = [](const std::string& config) {
        const Model model = parse_model(config);
        CHECK(model.attentions.size() >= 1);
        const Fields all = warned(model, WarningKind::approximated);
        CHECK(strictly_refused(config).size() == all.size());
        return all;
    };
    const auto of_type = [](const std::string& type, const std::string& members) {
        return R"({"model_type": ")" + type + R"(", "hidden_size": 4096, "num_attention_heads": 32,
            "num_hidden_layers": 2, "dtype": "bfloat16", )" +
               members + "}";
    };
    const Fields kNone, kMap = {"auto_map"}, kClasses = {"architectures"};
    const std::string encoder = R"("auto_map": {"AutoModel": "modeling_llama_encoder.LlamaEncoderModel"})";
    CHECK(fields(of_type("llama", encoder)) == kMap);
    CHECK(contains(parse_model(of_type("llama", encoder)).warnings.at(0).text, "(LlamaEncoderModel)"));
    CHECK(fields(of_type("qwen2", R"("auto_map": {"AutoModelForCausalLM": "a/b--x.FlashQwen"})")) == kMap);
    CHECK(fields(of_type("llama", R"("architectures": ["LlamaBiForMNTP"])")) == kClasses);
    CHECK(fields(of_type("mistral", R"("architectures": ["MistralBiModel"])")) == kClasses);
    CHECK(fields(of_type("mistral", R"("architectures": ["BidirectionalMistral"])")) == kClasses);
    // The type's own names, and what computes no attention.
    CHECK(fields(of_type(
              "phi3", R"("auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"})")) == kNone);
    CHECK(fields(of_type("llama",
                         R"("auto_map": {"AutoConfig": "c.MyConfig", "AutoTokenizer": ["t.A", null]})")) ==
          kNone);
    CHECK(fields(of_type("gpt_neox", R"("architectures": ["GPTNeoXForCausalLM"],
              "auto_map": {"AutoModel": "m.GPTNeoXModel"})")) == kNone);
    CHECK(fields(of_type("llama", R"("architectures": ["BigLlamaForCausalLM", "BitLlama"])")) == kNone);
    // Types that are nowhere but in such code.
    CHECK(fields(of_type("internlm2", R"("auto_map": {"AutoModel": "modeling_x.InternLM2Model"})")) == kNone);
    CHECK(fields(of_type("baichuan", R"("auto_map": {"AutoModel": "modeling_x.BaiChuanForCausalLM"})")) ==
          kNone);
    CHECK(fields(of_type("hunyuan_v1_moe", R"("auto_map": {"AutoModel": "hunyuan.HunYuanMoEV1Model"})")) ==
          kNone);
    // Inside a wrapper, and encoders of a type that has its own code.
    CHECK(fields(R"({"model_type": "llava", "text_config": {"model_type": "llama", "hidden_size": 1024,
              "num_attention_heads": 8, "num_hidden_layers": 2, )" +
                 encoder + "}}") == Fields{"text_config.auto_map"});
    CHECK(fields(of_type("bert", R"("auto_map": {"AutoModel": "a/b--modeling_bert.JinaBertModel"})")) ==
          kMap);
    CHECK(fields(of_type("bert", R"("architectures": ["BertModel"])")) == kNone);
    // A bidirectional one that is planned so.
    CHECK(fields(of_type("llama", R"("is_causal": false, "architectures": ["LlamaBiModel"])")) == kNone);
}

TEST_CASE("strict refuses unsupported parts and nothing that is whole", "[model]") {
    CHECK(strictly_refused(read_file(kModels / "llama-3.1-8b.json")).empty());
    CHECK(strictly_refused(read_file(kModels / "deepseek-v3.json")).empty());
    const std::vector<Refusal> refusals = strictly_refused(
        R"({"model_type": "deepseek_v3", "num_attention_heads": 16, "num_hidden_layers": 2, "kv_lora_rank": 500,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "torch_dtype": "bfloat16"})");
    REQUIRE(refusals.size() == 1);
    CHECK(refusals[0].candidate == "full_attention/decode");
    // Notes are no doubts: this one's dtype is planned as bf16.
    CHECK(strictly_refused(read_file(kModels / "gemma-2-9b.json")).empty());
}

TEST_CASE("of a model that is refused as a whole, no field is doubted", "[model]") {
    const Model model = parse_model(llama_with(R"("index_topk": 2048, "index_n_heads": 64)"));
    CHECK(model.attentions.empty());
    CHECK(model.warnings.empty());
}

TEST_CASE("KV that a model comes with quantised is planned so where kernels read it") {
    struct Scheme {
        const char* text;
        KvScale scale;
    };
    for (const Scheme& scheme :
         {Scheme{R"("kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"})",
                 KvScale::tensor},
          Scheme{R"("kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "attn_head"})",
                 KvScale::head},
          Scheme{R"("quantization": {"kv_cache_quant_algo": "FP8"})", KvScale::tensor},
          Scheme{R"("kv_cache_quant_algo": "FP8")", KvScale::tensor}}) {
        const std::string config = llama_with(
            fmt::format(R"("quantization_config": {{"quant_method": "modelopt", {}}})", scheme.text));
        const Model model = parse_model(config);
        CHECK(model.warnings.empty());
        REQUIRE_FALSE(model.attentions.empty());
        for (const ModelAttention& attention : model.attentions) {
            CHECK(attention.request.spec.kv_dtype == DType::e4m3);
            CHECK(attention.request.spec.kv_scale == scheme.scale);
        }
        // Who plans knows better than the file what the cache is.
        const Model as_dtype = parse_model(config, {.kv_dtype = DType::bf16});
        CHECK(as_dtype.attentions.front().request.spec.kv_dtype == DType::bf16);
        CHECK(as_dtype.warnings.empty());
        for (const KvScale given : {KvScale::none, KvScale::tensor, KvScale::head}) {
            const Model as_given = parse_model(config, {.kv_scale = given});
            CHECK(as_given.attentions.front().request.spec.kv_dtype == DType::e4m3);
            CHECK(as_given.attentions.front().request.spec.kv_scale == given);
        }
    }
}

TEST_CASE("KV that a model comes with quantised in another way is warned of") {
    for (const char* scheme :
         {R"("kv_cache_scheme": {"num_bits": 8})", R"("kv_cache_scheme": {"num_bits": 4, "type": "float"})",
          R"("kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "channel"})",
          R"("kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": true})",
          R"("kv_cache_scheme": {"num_bits": 8, "type": "float", "symmetric": false})",
          R"("kv_cache_quant_algo": "NVFP4")", R"("kv_cache_quant_algo": "INT8")"}) {
        const Model model = parse_model(
            llama_with(fmt::format(R"("quantization_config": {{"quant_method": "modelopt", {}}})", scheme)));
        REQUIRE(model.warnings.size() == 1);
        CHECK(model.warnings.front().kind == WarningKind::approximated);
        CHECK(contains(model.warnings.front().field, "quantization_config.kv_cache"));
        CHECK(contains(model.warnings.front().text, "say what they are by kv_dtype and kv_scale"));
    }
}

TEST_CASE("a pattern that no code reads is warned of, but for a file that lists its layers", "[model]") {
    const std::string pattern = R"(, "_sliding_window_pattern": 3, "num_key_value_heads": 16)";
    const Model counted = parse_model(of_type("gemma3_text", pattern));
    CHECK(warned(counted, WarningKind::unread_field) == Fields{"_sliding_window_pattern"});
    std::string types = R"(, "layer_types": ["full_attention")";
    for (int layer = 1; layer < 12; ++layer) types += R"(, "sliding_attention")";
    CHECK(parse_model(of_type("gemma3_text", pattern + types + "]")).warnings.empty());
}
