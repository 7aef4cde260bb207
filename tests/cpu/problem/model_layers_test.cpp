#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "attnsmith/spec.hpp"
#include "expect.hpp"
#include "model_summary.hpp"

using namespace attnsmith;
using namespace attnsmith::test;

// ---- layers ----

TEST_CASE("which layers slide", "[model]") {
    struct Case {
        std::string members;
        std::int64_t sliding, full;  // layers, of 12
        std::int64_t window_left = 99;
        bool sliding_first = true;
    };
    const Case cases[] = {
        {R"("sliding_window": 100)", 12, 0},
        {R"("sliding_window": 1)", 12, 0, 0},
        {R"("sliding_window": null)", 0, 12},
        {R"("sliding_window": 100, "use_sliding_window": false)", 0, 12},
        {R"("sliding_window": 100, "use_sliding_window": true)", 12, 0},
        {R"("sliding_window": 100, "use_sliding_window": true, "max_window_layers": 8)", 4, 8, 99, false},
        {R"("sliding_window": 100, "use_sliding_window": true, "max_window_layers": 0)", 12, 0},
        {R"("sliding_window": 100, "use_sliding_window": true, "max_window_layers": 50)", 0, 12},
        {R"("sliding_window": 100, "use_sliding_window": false, "max_window_layers": 8)", 0, 12},
        {R"("sliding_window": 100, "sliding_window_pattern": 6)", 10, 2},
        {R"("sliding_window": 100, "_sliding_window_pattern": 4)", 9, 3},
        {R"("sliding_window": 100, "sliding_window_pattern": 1)", 0, 12},
        {R"("sliding_window": 100, "sliding_window_pattern": "LLLG")", 9, 3},
        {R"("sliding_window": 100, "sliding_window_pattern": "LLLLL")", 11, 1},  // the last sees all
        {R"("sliding_window": null, "sliding_window_pattern": 4)", 0, 12},
        {R"("sliding_window": 100, "layer_types": ["full_attention", "sliding_attention", "sliding_attention",
             "full_attention", "full_attention", "full_attention", "full_attention", "full_attention",
             "full_attention", "full_attention", "full_attention", "full_attention"])",
         2, 10, 99, false},
        {R"("sliding_window": null, "layer_types": ["full_attention", "full_attention", "full_attention",
             "full_attention", "full_attention", "full_attention", "full_attention", "full_attention",
             "full_attention", "full_attention", "full_attention", "full_attention", "draft_attention"])",
         0, 12},
        {R"("window_size": 100, "attention_types": [[["global", "local"], 6]])", 6, 6, 99, false},
        {R"("window_size": 100, "attention_layers": ["local", "local", "local", "local", "global", "global", "global",
             "global", "global", "global", "global", "global"])",
         4, 8},
    };
    for (const Case& expected : cases) {
        INFO(expected.members);
        Attention sliding = kLlama;
        sliding.name = "sliding_attention";
        sliding.layers = expected.sliding;
        sliding.window_left = expected.window_left;
        Attention full = kLlama;
        full.layers = expected.full;
        std::vector<Attention> attentions;
        if (expected.sliding == 0)
            attentions = both(full);
        else if (expected.full == 0)
            attentions = both(sliding);
        else
            attentions = expected.sliding_first ? both(sliding, full) : both(full, sliding);
        const Model model = parse_model(untyped_with(expected.members));
        CHECK(summary(model) == attentions);
        CHECK(model.unsupported.empty());
    }
}

TEST_CASE("entries for more layers than there are get a note", "[model]") {
    std::string entries = R"("full_attention")";
    for (int i = 0; i < 12; ++i) entries += R"(, "full_attention")";
    const Model model = parse_model(untyped_with(R"("layer_types": [)" + entries + "]"));
    REQUIRE_FALSE(model.attentions.empty());
    const auto& notes = model.attentions.front().notes;
    CHECK(std::ranges::any_of(notes, [](const std::string& note) {
        return contains(note, "layer_types has 13 entries, but the model has 12 layers");
    }));
}

TEST_CASE("newer files call a Mamba layer beside attention linear_attention", "[model]") {
    for (const char* type : {"bamba", "zamba2", "granitemoehybrid"}) {
        INFO(type);
        const Model model =
            parse_model(R"({"model_type": ")" + std::string(type) +
                        R"(", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 3,
                "layer_types": ["linear_attention", "full_attention", "linear_attention"]})");
        CHECK(model.attentions.size() == 2);
        CHECK(model.unsupported.empty());
        CHECK(has_note(model, "2 layers hold no attention"));
    }
}

TEST_CASE("one layer without attention is told in the singular", "[model]") {
    const Model model = parse_model(
        R"({"model_type": "bamba", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"]})");
    CHECK(has_note(model, "1 layer holds no attention"));
}

TEST_CASE("a list of Nemotron-H's layers says how many there are", "[model]") {
    for (const char* list : {R"("layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"])",
                             R"("hybrid_override_pattern": "ME*-")"}) {
        INFO(list);
        const Model model =
            parse_model(R"({"model_type": "nemotron_h", "hidden_size": 4096, "num_attention_heads": 32, )" +
                        std::string(list) + "}");
        CHECK(summary(model) == both({"full_attention", 1, 32, 8, 128, 128, rsqrt(128)}));
        CHECK(has_note(model, "3 layers hold no attention"));
    }
}

TEST_CASE("heads that differ from layer to layer are planned by their numbers", "[model]") {
    const Model model = parse_model(R"({"model_type": "openelm", "head_dim": 64, "num_transformer_layers": 4,
        "num_query_heads": [8, 16, 16, 8], "num_kv_heads": [4, 4, 4, 2], "torch_dtype": "bfloat16"})");
    Attention second = {"full_attention_q16_kv4", 2, 16, 4, 64, 64, 0.125};
    std::vector<Attention> expected = both({"full_attention_q8_kv4", 1, 8, 4, 64, 64, 0.125}, second);
    for (const Attention& attention : both({"full_attention_kv2", 1, 8, 2, 64, 64, 0.125}))
        expected.push_back(attention);
    CHECK(summary(model) == expected);
    CHECK(model.warnings.empty());
    // The list of KV heads may be missing.
    const Model equal = parse_model(R"({"model_type": "openelm", "head_dim": 64, "num_transformer_layers": 2,
        "num_query_heads": [8, 8], "torch_dtype": "bfloat16"})");
    CHECK(summary(equal) == both({"full_attention", 2, 8, 8, 64, 64, 0.125}));
}

TEST_CASE("a long list of layers takes little longer than it takes to read", "[model]") {
    std::string indices = "1";
    for (int i = 0; i < 340'000; ++i) indices += ",1";
    // Seconds of this thread's processor.
    const auto seconds_for = [&](int layers) {
        const auto start = std::clock();
        const Model model = parse_model(
            R"({"model_type": "bamba", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": )" +
            std::to_string(layers) + R"(, "attn_layer_indices": [)" + indices + "]}");
        const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
        CHECK(has_note(model, std::to_string(layers - 1) + " layers hold no attention"));
        return seconds;
    };
    // A search through the list for each layer would take some ten times as long.
    (void)seconds_for(3);  // which also pays for the first use of memory
    const double few = seconds_for(3);
    CHECK(seconds_for(10000) < 3 * few);
}

TEST_CASE("layers that are no attention are left out, with a note", "[model]") {
    const std::string cases[] = {
        R"("attn_layer_period": 8, "attn_layer_offset": 4)",
        R"("attn_layer_indices": [4])",
        R"("hybrid_override_pattern": "M-M-*-M-M-M-")",
        R"("layers_block_type": ["mamba", "mamba", "mamba", "mamba", "attention", "mamba", "mamba", "mamba", "mamba",
            "mamba", "mamba", "mamba"])",
    };
    Attention expected = kLlama;
    expected.layers = 1;
    for (const std::string& members : cases) {
        INFO(members);
        const Model model = parse_model(untyped_with(members));
        CHECK(summary(model) == both(expected));
        CHECK(has_note(model, "11 layers hold no attention"));
        CHECK(model.unsupported.empty());
    }
    CHECK(summary(parse_model(untyped_with(R"("attn_layer_indices": [4, 4])"))) == both(expected));
    // Griffin's attention is local.
    expected.layers = 4;
    expected.name = "sliding_attention";
    expected.window_left = 2047;
    CHECK(summary(parse_model(untyped_with(
              R"("attention_window_size": 2048, "block_types": ["recurrent", "recurrent", "attention"])"))) ==
          both(expected));
}

TEST_CASE("a model without any attention is listed as such", "[model]") {
    for (const std::string& config :
         {of_type("bamba", R"(, "attn_layer_indices": [])"),
          of_type("nemotron_h", R"(, "hybrid_override_pattern": "MMMMMMMMMMMM")"),
          of_type("jamba", R"(, "attn_layer_period": 99, "attn_layer_offset": 50)")}) {
        INFO(config);
        const Model model = parse_model(config);
        CHECK(model.attentions.empty());
        REQUIRE(model.unsupported.size() == 1);
        CHECK(model.unsupported[0].name == "attention");
        CHECK(model.unsupported[0].reason == "none of the 12 layers holds an attention");
    }
}

TEST_CASE("heads that per_layer_config gives to single layers are planned", "[model]") {
    const auto planned = [](const std::string& members) {
        return parse_model(R"({"model_type": "gemma4_text", "hidden_size": 2304, "num_attention_heads": 8,
            "num_hidden_layers": 6, "per_layer_config": )" +
                           members + "}");
    };
    // As transformers 5.23 writes what global_head_dim and num_global_key_value_heads were.
    const Model model = planned(R"({"5": {"head_dim": 128, "num_key_value_heads": 2}})");
    CHECK(summary(model) == both({"sliding_attention", 5, 8, 4, 256, 256, 1.0, 511},
                                 {"full_attention", 1, 8, 2, 128, 128, 1.0}));
    CHECK(model.warnings.empty());
    CHECK_FALSE(has_note(model, "global_head_dim"));
    // What is not written there is the model's, not a class's.
    CHECK(summary(planned("{}")) == both({"sliding_attention", 5, 8, 4, 256, 256, 1.0, 511},
                                         {"full_attention", 1, 8, 4, 256, 256, 1.0}));
    const Model wider = planned(R"({"0": {"head_dim": 576}, "5": {"head_dim": 576}})");
    CHECK(wider.unsupported.size() == 2);
    // The rest is warned of once, if it can change an attention.
    const Model odd =
        planned(R"({"1": {"sliding_window": 8, "intermediate_size": 9}, "2": {"sliding_window": 8}})");
    CHECK(warned(odd, WarningKind::unread_field) == std::vector<std::string>{"per_layer_config"});
    CHECK(odd.warnings.size() == 1);
}

TEST_CASE("layers with rotary positions see their chunk, the others all", "[model]") {
    const std::pair<const char*, std::int64_t> cases[] = {
        {R"("attention_chunk_size": 4096)", 3},
        {R"("attention_chunk_size": 4096, "no_rope_layers": [])", 3},
        {R"("attention_chunk_size": 4096, "no_rope_layer_interval": 6)", 2},
        {R"("attention_chunk_size": 4096, "no_rope_layers": [1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1])", 2},
        {R"("attention_chunk_size": 4096, "layer_types": ["chunked_attention", "full_attention", "full_attention",
             "chunked_attention", "chunked_attention", "chunked_attention", "chunked_attention", "chunked_attention",
             "chunked_attention", "chunked_attention", "chunked_attention", "chunked_attention"])",
         2},
    };
    for (const auto& [members, layers] : cases) {
        INFO(members);
        Attention full = kLlama, chunked = kLlama;
        full.layers = layers;
        chunked.layers = 12 - layers;
        chunked.name = "chunked_attention";
        chunked.attention_chunk = 4096;
        const Model model = parse_model(untyped_with(members));
        CHECK(summary(model) == both(chunked, full));
        CHECK(model.unsupported.empty());
    }
    // A list of such layers alone does not say how long a chunk is.
    const Model model = parse_model(untyped_with(
        R"("layer_types": ["chunked_attention", "full_attention", "full_attention", "full_attention",
            "full_attention", "full_attention", "full_attention", "full_attention", "full_attention", "full_attention",
            "full_attention", "full_attention"])"));
    REQUIRE(model.unsupported.size() == 1);
    CHECK(model.unsupported[0].reason ==
          "layer type chunked_attention (1 layers) needs an attention_chunk_size");
}

TEST_CASE("kinds of attention that are not built are listed, the rest is done", "[model]") {
    struct Case {
        std::string members;
        std::string name;
        std::int64_t full;
    };
    const Case cases[] = {
        {R"("layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention",
             "linear_attention", "linear_attention", "linear_attention", "full_attention", "linear_attention",
             "linear_attention", "linear_attention", "full_attention"])",
         "linear_attention", 3},
        {R"("full_attention_interval": 4)", "linear_attention", 3},
        {R"("attn_type_list": [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1])", "linear_attention", 3},
    };
    for (const Case& expected : cases) {
        INFO(expected.members);
        Attention full = kLlama;
        full.layers = expected.full;
        const Model model = parse_model(untyped_with(expected.members));
        CHECK(summary(model) == both(full));
        REQUIRE(model.unsupported.size() == 1);
        CHECK(model.unsupported[0].name == expected.name);
        CHECK(model.unsupported[0].reason == "layer type " + expected.name + " (" +
                                                 std::to_string(12 - expected.full) +
                                                 " layers) is not supported");
    }
    CHECK(parse_model(R"({"model_type": "a\u0007b", "hidden_size": 64, "num_attention_heads": 1,
                          "num_hidden_layers": 1})")
              .model_type == R"("a\u0007b")");
    // A type that nobody knows, with text that is not for a terminal.
    const Model model =
        parse_model(untyped_with(R"("num_hidden_layers_": 1, "block_types": ["x\u001b[31m\n"])"));
    CHECK(model.attentions.empty());
    REQUIRE(model.unsupported.size() == 1);
    CHECK(model.unsupported[0].name == "\"x\\u001b[31m\\n\"");
}

TEST_CASE("heads that no kernel takes are listed", "[model]") {
    const Model model = parse_model(untyped_with(R"("head_dim": 100)"));
    CHECK(model.attentions.empty());
    REQUIRE(model.unsupported.size() == 1);
    CHECK(model.unsupported[0].name == "full_attention");
    CHECK(contains(model.unsupported[0].reason, "head_dim 100 is not supported"));
    // Gemma 4's global layers have heads of 512, all of which are planned; its scale is 1.
    const auto gemma = [](int global) {
        return parse_model(fmt::format(
            R"({{"model_type": "gemma4_text", "hidden_size": 2304, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": {}, "num_hidden_layers": 30,
            "sliding_window": 512, "sliding_window_pattern": 6}})",
            global));
    };
    CHECK(summary(gemma(512)) == both({"sliding_attention", 25, 8, 4, 256, 256, 1.0, 511},
                                      {"full_attention", 5, 8, 4, 512, 512, 1.0}));
    CHECK(gemma(512).unsupported.empty());
    CHECK(summary(gemma(520)) == both({"sliding_attention", 25, 8, 4, 256, 256, 1.0, 511}));
    REQUIRE(gemma(520).unsupported.size() == 1);
    CHECK(contains(gemma(520).unsupported[0].reason, "520"));
}

// ---- latent attention ----

TEST_CASE("latent attention: prefill by heads, decode by the latents", "[model]") {
    const std::string base = R"({"model_type": "deepseek_v2", "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 16, "num_hidden_layers": 27, "kv_lora_rank": 512, "q_lora_rank": null,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 64)";
    const auto scale = [&](const std::string& members) {
        const Model model = parse_model(base + members + "}");
        REQUIRE(model.attentions.size() == 2);
        CHECK(model.attentions[0].name == "full_attention/prefill");
        CHECK(model.attentions[0].request.spec.head_dim_qk == 192);
        CHECK(model.attentions[0].request.spec.head_dim_vo == 128);
        CHECK(model.unsupported.empty());
        const ModelAttention& decode = model.attentions[1];
        CHECK(decode.name == "full_attention/decode");
        CHECK(decode.request.spec.op == Op::mla);
        CHECK(decode.request.spec.head_dim_ckv == 512);
        CHECK(decode.request.spec.head_dim_kpe == 64);
        CHECK(decode.request.spec.mask == Mask::causal);
        CHECK(decode.request.spec.kv == KvStorage::paged);
        CHECK(decode.request.sizes.q_len == 1);
        CHECK(decode.request.spec.scale == model.attentions[0].request.spec.scale);
        return *model.attentions[0].request.spec.scale;
    };
    const double mscale = 0.1 * 0.707 * std::log(40.0) + 1.0;
    CHECK(scale("") == rsqrt(192));
    CHECK(scale(R"(, "rope_scaling": null)") == rsqrt(192));
    CHECK(scale(R"(, "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0})") == rsqrt(192));
    CHECK(scale(R"(, "rope_scaling": {"type": "yarn", "factor": 1, "mscale_all_dim": 1.0})") == rsqrt(192));
    CHECK(
        scale(
            R"(, "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707})") ==
        Approx(rsqrt(192) * mscale * mscale).epsilon(1e-14));
    CHECK(scale(R"(, "rope_parameters": {"rope_type": "yarn", "factor": 40.0, "mscale_all_dim": 0.707})") ==
          Approx(rsqrt(192) * mscale * mscale).epsilon(1e-14));
    // Heads that no kernel takes: the latents are planned all the same, and the other way round.
    const auto odd = [](int nope, int rank) {
        return parse_model(R"({"num_attention_heads": 16, "num_hidden_layers": 2, "qk_rope_head_dim": 64,
            "v_head_dim": 128, "qk_nope_head_dim": )" +
                           std::to_string(nope) + R"(, "kv_lora_rank": )" + std::to_string(rank) + "}");
    };
    REQUIRE(odd(250, 512).attentions.size() == 1);
    CHECK(odd(250, 512).attentions[0].name == "full_attention/decode");
    REQUIRE(odd(250, 512).unsupported.size() == 1);
    CHECK(odd(250, 512).unsupported[0].name == "full_attention");
    REQUIRE(odd(128, 500).attentions.size() == 1);
    CHECK(odd(128, 500).attentions[0].name == "full_attention/prefill");
    REQUIRE(odd(128, 500).unsupported.size() == 1);
    CHECK(odd(128, 500).unsupported[0].name == "full_attention/decode");
    CHECK(contains(odd(128, 500).unsupported[0].reason, "500"));
    // What of the options the latents have no part in.
    ModelOptions high;
    high.precision = Precision::high;
    const Model precise = parse_model(base + "}", high);
    REQUIRE(precise.unsupported.size() == 1);
    CHECK(precise.unsupported[0].name == "full_attention/decode");
    ModelOptions heads_first;
    heads_first.page_order = PageOrder::HND;
    CHECK(parse_model(base + "}", heads_first).attentions.size() == 2);
}

// ---- encoders ----

TEST_CASE("encoders see all and have no decode", "[model]") {
    const std::string cases[] = {
        R"({"model_type": "bert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12})",
        R"({"model_type": "distilbert", "dim": 768, "n_heads": 12, "n_layers": 12})",
        R"({"model_type": "llama", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12,
            "is_causal": false})",
        R"({"model_type": "gemma3_text", "hidden_size": 768, "head_dim": 64, "num_attention_heads": 12,
            "num_key_value_heads": 12, "num_hidden_layers": 12, "use_bidirectional_attention": true,
            "query_pre_attn_scalar": 64, "layer_types": ["full_attention", "full_attention", "full_attention",
            "full_attention", "full_attention", "full_attention", "full_attention", "full_attention", "full_attention",
            "full_attention", "full_attention", "full_attention"]})",
    };
    Attention expected = {"full_attention/prefill", 12, 12, 12, 64, 64, 0.125};
    expected.mask = Mask::full;
    for (const std::string& config : cases) {
        INFO(config);
        const Model model = parse_model(config);
        CHECK(summary(model) == std::vector<Attention>{expected});
        CHECK(model.attentions.at(0).request.sizes == PlanSizes{8, 1024, 1024});
    }
    // A BERT that is a decoder.
    CHECK(
        parse_model(
            R"({"model_type": "bert", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12,
                          "is_decoder": true})")
            .attentions.size() == 2);
    // ModernBERT's window is to both sides.
    Attention sliding = expected;
    sliding.name = "sliding_attention/prefill";
    sliding.layers = 14;
    sliding.window_left = sliding.window_right = 64;
    expected.layers = 8;
    CHECK(summary(parse_model(R"({"model_type": "modernbert", "hidden_size": 768, "num_attention_heads": 12,
        "num_hidden_layers": 22, "global_attn_every_n_layers": 3, "local_attention": 128})")) ==
          std::vector<Attention>{expected, sliding});
    // EmbeddingGemma's class takes half of the window for each side.
    Attention full = {"full_attention/prefill", 4, 3, 1, 256, 256, 0.0625};
    full.mask = Mask::full;
    Attention halved = full;
    halved.name = "sliding_attention/prefill";
    halved.layers = 20;
    halved.window_left = halved.window_right = 256;
    CHECK(summary(parse_model(R"({"model_type": "gemma3_text", "hidden_size": 768, "head_dim": 256,
        "num_attention_heads": 3, "num_key_value_heads": 1, "num_hidden_layers": 24, "use_bidirectional_attention": true,
        "sliding_window": 512})")) == std::vector<Attention>{halved, full});
    // Nothing says of others how far the window looks ahead.
    const Model other = parse_model(R"({"model_type": "gemma4_text", "hidden_size": 768, "head_dim": 256,
        "num_attention_heads": 3, "num_key_value_heads": 1, "num_hidden_layers": 24, "use_bidirectional_attention": "all",
        "global_head_dim": 256, "sliding_window": 512})");
    CHECK(other.attentions.size() == 1);
    REQUIRE(other.unsupported.size() == 1);
    CHECK(other.unsupported[0].name == "sliding_attention");
}

TEST_CASE("of an encoder-decoder the decoder's self-attention is planned", "[model]") {
    const Model whisper =
        parse_model(R"({"model_type": "whisper", "d_model": 1280, "encoder_attention_heads": 16,
        "decoder_attention_heads": 20, "encoder_layers": 32, "decoder_layers": 4, "num_hidden_layers": 32,
        "is_encoder_decoder": true})");
    CHECK(summary(whisper) == both({"full_attention", 4, 20, 20, 64, 64, 0.125}));
    REQUIRE(whisper.unsupported.size() == 2);
    CHECK(whisper.unsupported[0].name == "encoder_attention");
    CHECK(whisper.unsupported[1].name == "cross_attention");
    const Model t5gemma =
        parse_model(R"({"model_type": "t5gemma", "is_encoder_decoder": true, "encoder": {"x": 1},
        "decoder": {"model_type": "t5_gemma_module", "hidden_size": 2304, "head_dim": 256, "num_attention_heads": 8,
                    "num_key_value_heads": 4, "num_hidden_layers": 26}})");
    CHECK(summary(t5gemma) == both({"sliding_attention", 13, 8, 4, 256, 256, 0.0625, 4095, 50.0},
                                   {"full_attention", 13, 8, 4, 256, 256, 0.0625, {}, 50.0}));
}

TEST_CASE("what no kernel computes is listed instead of planned wrongly", "[model]") {
    const std::pair<std::string, std::string> cases[] = {
        {R"({"model_type": "t5", "d_model": 512, "d_kv": 64, "num_heads": 8, "num_layers": 6,
             "relative_attention_num_buckets": 32})",
         "relative_attention_num_buckets"},
        {R"({"model_type": "beit", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12,
             "use_relative_position_bias": true})",
         "use_relative_position_bias"},
        {R"({"model_type": "deberta-v2", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12,
             "relative_attention": true})",
         "relative_attention"},
        {untyped_with(R"("position_embedding_type": "relative_key_query")"), "position_embedding_type"},
        {untyped_with(R"("blocksparse_block_size": 64)"), "blocksparse_block_size"},
        {untyped_with(R"("index_topk": 2048)"), "index_topk"},
        {untyped_with(R"("index_topk_blocks": 16)"), "blocks of keys that an indexer selects"},
        {untyped_with(R"("index_topk": 2048, "index_kpool": 16)"), "pools of keys that an indexer selects"},
        {untyped_with(R"("attention_window": [512, 512])"), "attention_window"},
        {untyped_with(R"("scale_attn_by_inverse_layer_idx": true)"), "scale_attn_by_inverse_layer_idx"},
        {untyped_with(R"("hybrid_layer_pattern": [0, 1])"), "hybrid_layer_pattern"},
        {untyped_with(R"("is_causal": false, "alibi": true)"), "ALiBi"},
    };
    for (const auto& [config, reason] : cases) {
        INFO(config);
        const Model model = parse_model(config);
        CHECK(model.attentions.empty());
        REQUIRE(model.unsupported.size() == 1);
        CHECK(contains(model.unsupported[0].reason, reason));
    }
    CHECK(summary(parse_model(
              untyped_with(R"("scale_attn_by_inverse_layer_idx": false, "relative_attention": null,
        "position_embedding_type": "absolute")"))) == both(kLlama));
}
