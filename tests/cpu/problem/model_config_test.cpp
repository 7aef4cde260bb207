#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attnsmith/spec.hpp"
#include "expect.hpp"
#include "model_summary.hpp"

using namespace attnsmith;
using namespace attnsmith::test;

// ---- the files of tests/models ----

TEST_CASE("each model file gives its attentions", "[model]") {
    // Its YaRN scales q and k each by 0.1 ln(40) + 1.
    const double yarn = 0.1 * std::log(40.0) + 1.0;
    const double deepseek_scale = rsqrt(192) * yarn * yarn;

    struct Case {
        std::string file;
        std::string model_type;
        std::vector<Attention> attentions;
    };
    const Case cases[] = {
        {"llama-3.1-8b", "llama", both({"full_attention", 32, 32, 8, 128, 128, rsqrt(128)})},
        {"llama-3.1-70b", "llama", both({"full_attention", 80, 64, 8, 128, 128, rsqrt(128)})},
        {"mistral-7b-v0.1", "mistral", both({"sliding_attention", 32, 32, 8, 128, 128, rsqrt(128), 4095})},
        {"phi-3-mini-4k", "phi3", both({"sliding_attention", 32, 32, 32, 96, 96, rsqrt(96), 2046})},
        {"qwen2.5-7b", "qwen2", both({"full_attention", 28, 28, 4, 128, 128, rsqrt(128)})},
        {"gemma-2-9b", "gemma2",
         both({"sliding_attention", 21, 16, 8, 256, 256, 0.0625, 4095, 50.0},
              {"full_attention", 21, 16, 8, 256, 256, 0.0625, {}, 50.0})},
        {"gpt-oss-20b", "gpt_oss",
         both({"sliding_attention", 12, 64, 8, 64, 64, 0.125, 127, {}, true},
              {"full_attention", 12, 64, 8, 64, 64, 0.125, {}, {}, true})},
        {"deepseek-v3",
         "deepseek_v3",
         {{"full_attention/prefill", 61, 128, 128, 192, 128, deepseek_scale},
          {"full_attention/decode", 61, 128, 1, 576, 512, deepseek_scale}}},
    };
    for (const Case& expected : cases) {
        INFO(expected.file);
        const Model model = parse_model(read_file(kModels / (expected.file + ".json")));
        CHECK(model.model_type == expected.model_type);
        CHECK(summary(model) == expected.attentions);
        CHECK(model.warnings.empty());
        CHECK(model.unsupported.empty());
        for (const ModelAttention& attention : model.attentions) {
            const AttentionRequest& request = attention.request;
            const bool from_latents = expected.file == "deepseek-v3" && attention.phase == "prefill";
            CHECK(request.spec.kv == (from_latents ? KvStorage::ragged : KvStorage::paged));
            CHECK(request.spec.page_size == (from_latents ? 0 : 16));
            CHECK(request.spec.dtype == DType::bf16);
            CHECK(request.sizes == PlanSizes{8, attention.phase == "decode" ? 1 : 1024, 4096});
            CHECK(parse_request(to_json(request)) == request);
        }
    }
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(kModels))
        files += entry.path().extension() == ".json";
    CHECK(files == std::size(cases));  // a new file is a new case
}

TEST_CASE("Gemma's float32 is planned as bf16, with a note", "[model]") {
    const std::string gemma = read_file(kModels / "gemma-2-9b.json");
    CHECK(has_note(parse_model(gemma), "dtype float32 is planned as bf16"));
    ModelOptions options;
    options.dtype = DType::fp16;
    const Model model = parse_model(gemma, options);
    CHECK(model.attentions.at(0).request.spec.dtype == DType::fp16);
    CHECK_FALSE(has_note(model, "dtype"));
    CHECK_FALSE(has_note(parse_model(read_file(kModels / "llama-3.1-8b.json")), "dtype"));
}

// ---- options ----

TEST_CASE("options reach every request", "[model]") {
    ModelOptions options;
    options.dtype = DType::fp16;
    options.kv = KvStorage::paged;
    options.page_size = 64;
    options.page_order = PageOrder::HND;
    options.index_dtype = DType::int64;
    options.alignment = 8;
    options.lse = true;
    options.o_dtype = DType::fp32;
    options.precision = Precision::high;
    options.consistency = Consistency::bitwise;
    options.batch = 3;
    options.q_len = 17;
    options.kv_len = 99;
    for (const ModelAttention& attention : parse_model(llama_with(""), options).attentions) {
        const AttentionRequest& request = attention.request;
        CHECK(request.spec.dtype == DType::fp16);
        CHECK(request.spec.page_size == 64);
        CHECK(request.spec.page_order == PageOrder::HND);
        CHECK(request.spec.index_dtype == DType::int64);
        CHECK(request.spec.alignment == 8);
        CHECK(request.spec.lse);
        CHECK(request.spec.o_dtype == DType::fp32);
        CHECK(request.spec.precision == Precision::high);
        CHECK(request.spec.consistency == Consistency::bitwise);
        CHECK(request.sizes == PlanSizes{3, attention.phase == "decode" ? 1 : 17, 99});
    }
    options.kv = KvStorage::ragged;
    const AttentionSpec ragged = parse_model(llama_with(""), options).attentions.at(0).request.spec;
    CHECK((ragged.page_size == 0 && ragged.page_order == PageOrder::NHD));
}

TEST_CASE("both phases of a model with latents have what the options say of results", "[model]") {
    const std::string config = read_file(kModels / "deepseek-v3.json");
    ModelOptions options;
    options.o_dtype = DType::fp32, options.lse = true, options.alignment = 8;
    options.index_dtype = DType::int64, options.consistency = Consistency::bitwise;
    const Model model = parse_model(config, options);
    REQUIRE(model.attentions.size() == 2);
    for (const ModelAttention& attention : model.attentions) {
        INFO(attention.name);
        const AttentionSpec& spec = attention.request.spec;
        CHECK(spec.o_dtype == DType::fp32);
        CHECK(spec.lse);
        CHECK(spec.alignment == 8);
        CHECK(spec.index_dtype == DType::int64);
        CHECK(spec.consistency == Consistency::bitwise);
    }
}

TEST_CASE("kv reaches both phases of a model with latents; without it a prefill is ragged", "[model]") {
    const std::string config = read_file(kModels / "deepseek-v3.json");
    const auto kv_of = [&](std::optional<KvStorage> kv) {
        ModelOptions options;
        options.kv = kv;
        std::vector<KvStorage> all;
        for (const ModelAttention& attention : parse_model(config, options).attentions)
            all.push_back(attention.request.spec.kv);
        return all;
    };
    using All = std::vector<KvStorage>;
    CHECK(kv_of(std::nullopt) == All{KvStorage::ragged, KvStorage::paged});
    CHECK(kv_of(KvStorage::paged) == All{KvStorage::paged, KvStorage::paged});
    CHECK(kv_of(KvStorage::dense) == All{KvStorage::dense, KvStorage::dense});
    CHECK(has_note(parse_model(config), "a prefill of latents is planned with ragged KV"));
}

TEST_CASE("bad options are refused by name", "[model]") {
    const auto with = [](auto member, auto value) {
        ModelOptions options;
        options.*member = value;
        return refused([&] { (void)parse_model(llama_with(""), options); }).field();
    };
    CHECK(with(&ModelOptions::page_size, std::int64_t{0}) == "page_size");
    CHECK(with(&ModelOptions::batch, std::int64_t{0}) == "batch");
    CHECK(with(&ModelOptions::q_len, std::int64_t{-1}) == "q_len");
    CHECK(with(&ModelOptions::kv_len, std::int64_t{-1}) == "kv_len");
    CHECK(with(&ModelOptions::dtype, std::optional<DType>(DType::int32)) == "dtype");
    ModelOptions unbuilt;
    unbuilt.dtype = DType::fp32;
    CHECK_THROWS_AS(parse_model(llama_with(""), unbuilt), Unsupported);
    CHECK(with(&ModelOptions::index_dtype, DType::fp32) == "index_dtype");
    for (const std::int64_t gpus : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{3}, std::int64_t{16},
                                    std::numeric_limits<std::int64_t>::min()}) {
        CHECK(with(&ModelOptions::tensor_parallel, gpus) == "tensor_parallel");
    }
}

TEST_CASE("tensor parallelism divides heads and repeats KV heads", "[model]") {
    const std::string config = read_file(kModels / "llama-3.1-70b.json");  // 64 and 8 heads
    const std::pair<int, std::pair<int, int>> cases[] = {
        {1, {64, 8}}, {2, {32, 4}}, {8, {8, 1}}, {16, {4, 1}}, {64, {1, 1}}};
    for (const auto& [gpus, heads] : cases) {
        ModelOptions options;
        options.tensor_parallel = gpus;
        const AttentionSpec spec = parse_model(config, options).attentions.at(0).request.spec;
        CHECK(spec.q_heads == heads.first);
        CHECK(spec.kv_heads == heads.second);
    }
    ModelOptions options;
    options.tensor_parallel = 16;
    const AttentionSpec latent =
        parse_model(read_file(kModels / "deepseek-v3.json"), options).attentions.at(0).request.spec;
    CHECK(latent.q_heads == 8);
    CHECK(latent.kv_heads == 8);
    const AttentionSpec decode =
        parse_model(read_file(kModels / "deepseek-v3.json"), options).attentions.at(1).request.spec;
    CHECK(decode.op == Op::mla);
    CHECK(decode.q_heads == 8);
    CHECK(decode.kv_heads == 1);
}

// ---- spellings ----

TEST_CASE("heads by any of their names", "[model]") {
    struct Case {
        std::string config;
        Attention attention;
    };
    const Case cases[] = {
        // GPT-2, and MQA of GPT-BigCode (StarCoder).
        {R"({"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12})",
         {"full_attention", 12, 12, 12, 64, 64, 0.125}},
        {R"({"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 40, "multi_query": true,
             "scale_attn_weights": true})",
         {"full_attention", 40, 48, 1, 128, 128, rsqrt(128)}},
        {R"({"model_type": "gpt_bigcode", "n_embd": 6144, "n_head": 48, "n_layer": 40, "multi_query": false,
             "scale_attn_weights": false})",
         {"full_attention", 40, 48, 48, 128, 128, 1.0}},
        // Bloom.
        {R"({"model_type": "bloom", "n_embed": 14336, "n_head": 112, "n_layer": 70})",
         {"full_attention", 70, 112, 112, 128, 128, rsqrt(128), {}, {}, false, true}},
        // MPT, with each kind of heads.
        {R"({"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "attn_config": {"alibi": true,
             "attn_type": "multihead_attention", "softmax_scale": null}})",
         {"full_attention", 32, 32, 32, 128, 128, rsqrt(128), {}, {}, false, true}},
        {R"({"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "attn_config": {"alibi": false,
             "attn_type": "multiquery_attention", "softmax_scale": 0.5}})",
         {"full_attention", 32, 32, 1, 128, 128, 0.5}},
        {R"({"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "attn_config": {"kv_n_heads": 8}})",
         {"full_attention", 40, 48, 8, 128, 128, rsqrt(128)}},
        // Falcon: 7B (MQA; its num_kv_heads says otherwise), 40B (groups), RW-1B (ALiBi), and the older
        // files.
        {R"({"model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_hidden_layers": 32,
             "num_kv_heads": 71, "multi_query": true, "new_decoder_architecture": false, "alibi": false})",
         {"full_attention", 32, 71, 1, 64, 64, 0.125}},
        {R"({"model_type": "falcon", "hidden_size": 8192, "num_attention_heads": 128, "num_hidden_layers": 60,
             "num_kv_heads": 8, "multi_query": true, "new_decoder_architecture": true, "alibi": false})",
         {"full_attention", 60, 128, 8, 64, 64, 0.125}},
        {R"({"model_type": "falcon", "hidden_size": 2048, "num_attention_heads": 32, "num_hidden_layers": 24,
             "multi_query": false, "alibi": true})",
         {"full_attention", 24, 32, 32, 64, 64, 0.125, {}, {}, false, true}},
        {R"({"model_type": "RefinedWeb", "hidden_size": 8192, "n_head": 128, "n_head_kv": 8, "n_layer": 60,
             "alibi": false})",
         {"full_attention", 60, 128, 8, 64, 64, 0.125}},
        // ChatGLM, Qwen 1.
        {R"({"model_type": "chatglm", "hidden_size": 4096, "num_attention_heads": 32, "num_layers": 28,
             "kv_channels": 128, "multi_query_attention": true, "multi_query_group_num": 2})",
         {"full_attention", 28, 32, 2, 128, 128, rsqrt(128)}},
        // head_dim that is not hidden / heads, given as a number or not at all.
        {llama_with(R"("head_dim": 64)"), {"full_attention", 12, 8, 8, 64, 64, 0.125}},
        {llama_with(R"("head_dim": null)"), kLlama},
        {untyped_with(R"("head_dim": 192, "v_head_dim": 128)"),
         {"full_attention", 12, 8, 8, 192, 128, rsqrt(192)}},
        {llama_with(R"("num_key_value_heads": null)"), kLlama},
        {llama_with(R"("num_key_value_heads": 2)"), {"full_attention", 12, 8, 2, 128, 128, rsqrt(128)}},
        // Scales.
        {untyped_with(R"("query_pre_attn_scalar": 144)"), {"full_attention", 12, 8, 8, 128, 128, 1.0 / 12}},
        {untyped_with(R"("attention_multiplier": 0.0078125)"),
         {"full_attention", 12, 8, 8, 128, 128, 0.0078125}},
        {R"({"model_type": "gpt_neo", "hidden_size": 2048, "num_heads": 16, "num_layers": 4,
             "attention_types": [[["global"], 4]]})",
         {"full_attention", 4, 16, 16, 128, 128, 1.0}},
        // Softcap; other names of windows.
        {untyped_with(R"("attn_logit_softcapping": 30)"),
         {"full_attention", 12, 8, 8, 128, 128, rsqrt(128), {}, 30.0}},
        {llama_with(R"("attn_logit_softcapping": null)"), kLlama},
    };
    for (const Case& expected : cases) {
        INFO(expected.config);
        const Model model = parse_model(expected.config);
        CHECK(summary(model) == both(expected.attention));
        CHECK(model.unsupported.empty());
    }
}

TEST_CASE("the part that is the language model is found", "[model]") {
    const std::string text = R"({"model_type": "llama", "hidden_size": 1024, "num_attention_heads": 8,
                                 "num_hidden_layers": 12, "num_key_value_heads": 8})";
    for (const char* name : {"text_config", "llm_config", "language_config"}) {
        const Model model =
            parse_model(R"({"model_type": "some_vlm", "torch_dtype": "float16", "vision_config": {"x": 1},
                                            ")" +
                        std::string(name) + "\": " + text + "}");
        CHECK(model.model_type == "some_vlm");
        CHECK(summary(model) == both(kLlama));
        CHECK(model.attentions.at(0).request.spec.dtype == DType::fp16);  // the outer one's
        CHECK(warned(model, WarningKind::not_planned) == std::vector<std::string>{"vision_config"});
    }
    // Nested twice.
    CHECK(summary(parse_model(R"({"thinker_config": {"text_config": )" + text + "}}")) == both(kLlama));
    // The inner dtype wins.
    CHECK(parse_model(R"({"dtype": "float32", "text_config": {"hidden_size": 64, "num_attention_heads": 1,
                          "num_hidden_layers": 1, "dtype": "float16"}})")
              .attentions.at(0)
              .request.spec.dtype == DType::fp16);
    // The heads are outside: something else is inside.
    CHECK(summary(parse_model(llama_with(R"("text_config": {"vocab_size": 7})"))) == both(kLlama));
    // An error inside says where.
    CHECK(refused([] { (void)parse_model(R"({"text_config": {"num_attention_heads": 8.5}})"); }).field() ==
          "text_config.num_attention_heads");
}

TEST_CASE("a wrapper's class says what language model it holds", "[model]") {
    const auto of_wrapper = [](const std::string& type, const std::string& sizes) {
        const std::string text =
            R"("hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 12)" + sizes;
        const Model nested =
            parse_model(R"({"model_type": ")" + type + R"(", "text_config": {)" + text + "}}");
        const Model flat = parse_model(R"({"model_type": ")" + type + R"(", )" + text + "}");
        INFO(type);
        CHECK(summary(nested) == summary(flat));
        CHECK(nested.unsupported.size() == flat.unsupported.size());
        CHECK(warned(nested, WarningKind::unknown_type).empty());
        CHECK(nested.model_type == type);
        return nested;
    };
    const auto unsupported = [](const Model& model) {
        return model.unsupported.empty() ? "" : model.unsupported[0].name;
    };
    const Model llama4 = of_wrapper("llama4", "");
    Attention chunked = {"chunked_attention", 9, 16, 8, 128, 128, rsqrt(128)};
    chunked.attention_chunk = 8192;
    CHECK(summary(llama4) == both(chunked, {"full_attention", 3, 16, 8, 128, 128, rsqrt(128)}));
    CHECK(unsupported(llama4) == "");
    CHECK(has_note(llama4, "the language model of llama4 is planned as llama4_text"));
    CHECK(unsupported(of_wrapper("mllama", "")) == "cross_attention");
    CHECK(summary(of_wrapper("qwen3_vl", R"(, "num_key_value_heads": 4)")) ==
          both({"full_attention", 12, 16, 4, 128, 128, rsqrt(128)}));
    CHECK(summary(of_wrapper("mistral3", "")) ==
          both({"sliding_attention", 12, 16, 8, 128, 128, rsqrt(128), 4095}));
    CHECK(summary(of_wrapper("gemma3", "")) == both({"sliding_attention", 10, 16, 4, 256, 256, 0.0625, 4095},
                                                    {"full_attention", 2, 16, 4, 256, 256, 0.0625}));
    CHECK(summary(of_wrapper("gemma3n", "")) == both({"sliding_attention", 10, 16, 2, 256, 256, 1.0, 511},
                                                     {"full_attention", 2, 16, 2, 256, 256, 1.0}));
    CHECK(summary(of_wrapper("aya_vision", "")) ==
          both({"sliding_attention", 9, 16, 16, 128, 128, rsqrt(128), 4095},
               {"full_attention", 3, 16, 16, 128, 128, rsqrt(128)}));
    CHECK(summary(of_wrapper("llava", "")) == both({"full_attention", 12, 16, 16, 128, 128, rsqrt(128)}));
    // Sizes of the class, as elsewhere in a part of a file.
    CHECK(summary(parse_model(R"({"model_type": "gemma3", "text_config": {"num_hidden_layers": 6}})")) ==
          both({"sliding_attention", 5, 8, 4, 256, 256, 0.0625, 4095},
               {"full_attention", 1, 8, 4, 256, 256, 0.0625}));
    // Around a thinker, and of a type that once was its own text's.
    CHECK(summary(parse_model(R"({"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {}}})")) ==
          both({"full_attention", 28, 28, 4, 128, 128, rsqrt(128)}));
    CHECK(summary(parse_model(R"({"model_type": "qwen2_vl", "text_config": {}})")) ==
          both({"full_attention", 80, 64, 8, 128, 128, rsqrt(128)}));
}

// ---- dtypes, text, bad configs ----

TEST_CASE("dtypes by any of their names", "[model]") {
    const auto dtype = [](const std::string& members) {
        const Model model = parse_model(
            R"({"hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 1)" + members + "}");
        return std::pair(model.attentions.at(0).request.spec.dtype, has_note(model, "planned as bf16"));
    };
    CHECK(dtype(R"(, "torch_dtype": "bfloat16")") == std::pair(DType::bf16, false));
    CHECK(dtype(R"(, "dtype": "float16")") == std::pair(DType::fp16, false));
    CHECK(dtype(R"(, "torch_dtype": "torch.float16")") == std::pair(DType::fp16, false));
    CHECK(dtype(R"(, "torch_dtype": "float32")") == std::pair(DType::bf16, true));
    CHECK(dtype(R"(, "torch_dtype": "auto")") == std::pair(DType::bf16, true));
    CHECK(dtype(R"(, "torch_dtype": null)") == std::pair(DType::bf16, true));
    CHECK(dtype("") == std::pair(DType::bf16, true));
}

TEST_CASE("what Python writes and JSON does not have is read", "[model]") {
    CHECK(
        summary(parse_model(llama_with(
            R"("time_step_limit": [0.0, Infinity], "a": -Infinity, "b": NaN, "c\"Infinity": "NaN \" Infinity",
                 "model_max_length": 1000000000000000019884624838656)"))) == both(kLlama));
}

TEST_CASE("no mutation of a config does anything but throw an Error", "[model][fuzz]") {
    std::mt19937_64 engine(4);
    const auto below = [&](std::size_t n) {
        return std::uniform_int_distribution<std::size_t>(0, n - 1)(engine);
    };
    const std::string values[] = {"null", "-1", "0",     "1e9",  "99999999999999999999",
                                  "[]",   "{}", "\"x\"", "true", "[1,\"a\"]"};
    int planned = 0;
    int refusals = 0;
    for (const auto& entry : std::filesystem::directory_iterator(kModels)) {
        if (entry.path().extension() != ".json") continue;
        const std::string config = read_file(entry.path());
        for (int i = 0; i < 1000; ++i) {
            std::string text = config;
            const std::size_t colon = text.find(':', below(text.size()));
            if (i % 2 == 0 && colon != text.npos) {  // another value for a field
                const std::size_t end = text.find_first_of(",}\n", colon);
                text.replace(colon + 1, end - colon - 1, values[below(std::size(values))]);
            } else {
                text[below(text.size())] = static_cast<char>(below(256));
            }
            try {
                (void)parse_model(text);
                ++planned;
            } catch (const Error&) {
                ++refusals;
            }
        }
    }
    CHECK(planned > 500);
    CHECK(refusals > 500);
}

TEST_CASE("Of two dtypes the newer field counts") {
    const Model model = parse_model(R"({"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8,
        "num_hidden_layers": 2, "torch_dtype": "bfloat16", "dtype": "float16"})");
    CHECK(model.attentions.at(0).request.spec.dtype == DType::fp16);
}

TEST_CASE("Text with a NUL is no JSON, wherever it stands") {
    using namespace std::string_literals;
    const std::string config =
        R"({"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2})";
    CHECK_NOTHROW(parse_model(config));
    CHECK_THROWS_AS(parse_model(config + "\0, \"alibi\": true}"s), InvalidRequest);
    CHECK_THROWS_AS(parse_request("{\"head_dim\": 64, \"q_heads\": 8}\0"s), InvalidRequest);
}

TEST_CASE("A model_type that is no string is refused") {
    CHECK_THROWS_AS(parse_model(R"({"model_type": 5, "hidden_size": 512, "num_attention_heads": 8,
        "num_hidden_layers": 2})"),
                    InvalidRequest);
}
