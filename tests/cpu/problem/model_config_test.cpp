#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "attnsmith/spec.hpp"
#include "expect.hpp"

using namespace attnsmith;
using attnsmith::test::contains;
using attnsmith::test::refused;

namespace {

#ifdef ATTNSMITH_MODELS_DIR
const std::filesystem::path kModels = ATTNSMITH_MODELS_DIR;
#else
const std::filesystem::path kModels = std::filesystem::path(__FILE__).parent_path() / "../../models";
#endif

std::string read_file(const std::filesystem::path& path) {
    std::ifstream file(path);
    INFO(path.string());
    REQUIRE(file.good());
    return {std::istreambuf_iterator<char>(file), {}};
}

// What is compared of one attention; "full_attention/prefill" has one for each phase.
struct Attention {
    std::string name;
    std::int64_t layers;
    std::int64_t q_heads, kv_heads, head_dim_qk, head_dim_vo;
    double scale;
    std::optional<std::int64_t> window_left = {};
    std::optional<double> softcap = {};
    bool sink = false;
    bool alibi = false;
    Mask mask = Mask::causal;
    std::optional<std::int64_t> window_right = {};

    bool operator==(const Attention&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Attention& a) {
    return out << a.name << " x" << a.layers << " " << a.q_heads << "/" << a.kv_heads << " " << a.head_dim_qk
               << "/" << a.head_dim_vo << " scale " << a.scale << " window " << a.window_left.value_or(-1)
               << ".." << a.window_right.value_or(-1) << " softcap " << a.softcap.value_or(0) << " sink "
               << a.sink << " alibi " << a.alibi << " " << to_string(a.mask);
}

std::vector<Attention> summary(const Model& model) {
    std::vector<Attention> all;
    for (const ModelAttention& attention : model.attentions) {
        const AttentionSpec& spec = attention.request.spec;
        CHECK(attention.name.substr(attention.name.find('/') + 1) == attention.phase);
        all.push_back({attention.name, attention.layers, spec.q_heads, spec.kv_heads, spec.head_dim_qk,
                       spec.head_dim_vo, *spec.scale, spec.window_left, spec.softcap, spec.sink, spec.alibi,
                       spec.mask, spec.window_right});
    }
    return all;
}

// An attention in both phases.
std::vector<Attention> both(Attention attention) {
    Attention decode = attention;
    attention.name += "/prefill";
    decode.name += "/decode";
    return {attention, decode};
}

std::vector<Attention> both(const Attention& first, const Attention& second) {
    std::vector<Attention> all = both(first);
    for (Attention& attention : both(second)) all.push_back(std::move(attention));
    return all;
}

double rsqrt(double x) { return 1.0 / std::sqrt(x); }

// A small Llama with more members.
std::string llama_with(const std::string& members) {
    return R"({"model_type": "llama", "hidden_size": 1024, "num_attention_heads": 8, "num_hidden_layers": 12,
               "torch_dtype": "bfloat16")" +
           (members.empty() ? "" : ", " + members) + "}";
}
const Attention kLlama = {"full_attention", 12, 8, 8, 128, 128, rsqrt(128)};

bool has_note(const Model& model, const std::string& part) {
    for (const ModelAttention& attention : model.attentions) {
        bool found = false;
        for (const std::string& note : attention.notes) found = found || contains(note, part);
        if (!found) return false;
    }
    return !model.attentions.empty();
}

}  // namespace

// ---- the files of tests/models ----

TEST_CASE("each model file gives its attentions", "[model]") {
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
        {"deepseek-v3", "deepseek_v3", {{"full_attention/prefill", 61, 128, 128, 192, 128, rsqrt(192)}}},
    };
    for (const Case& expected : cases) {
        INFO(expected.file);
        const Model model = parse_model(read_file(kModels / (expected.file + ".json")));
        CHECK(model.model_type == expected.model_type);
        CHECK(summary(model) == expected.attentions);
        if (expected.file == "deepseek-v3") {
            REQUIRE(model.unsupported.size() == 1);
            CHECK(model.unsupported[0].name == "latent/decode");
            CHECK(model.unsupported[0].reason ==
                  "op mla is not built in this version (head_dim_qk 576, head_dim_vo 512)");
        } else {
            CHECK(model.unsupported.empty());
        }
        for (const ModelAttention& attention : model.attentions) {
            const AttentionRequest& request = attention.request;
            CHECK(request.spec.kv == KvStorage::paged);
            CHECK(request.spec.page_size == 16);
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
    options.dtype = DType::f16;
    const Model model = parse_model(gemma, options);
    CHECK(model.attentions.at(0).request.spec.dtype == DType::f16);
    CHECK_FALSE(has_note(model, "dtype"));
    CHECK_FALSE(has_note(parse_model(read_file(kModels / "llama-3.1-8b.json")), "dtype"));
}

// ---- options ----

TEST_CASE("options reach every request", "[model]") {
    ModelOptions options;
    options.dtype = DType::f16;
    options.kv = KvStorage::paged;
    options.page_size = 64;
    options.page_order = PageOrder::HND;
    options.index_dtype = DType::i64;
    options.batch = 3;
    options.q_len = 17;
    options.kv_len = 99;
    for (const ModelAttention& attention : parse_model(llama_with(""), options).attentions) {
        const AttentionRequest& request = attention.request;
        CHECK(request.spec.dtype == DType::f16);
        CHECK(request.spec.page_size == 64);
        CHECK(request.spec.page_order == PageOrder::HND);
        CHECK(request.spec.index_dtype == DType::i64);
        CHECK(request.sizes == PlanSizes{3, attention.phase == "decode" ? 1 : 17, 99});
    }
    options.kv = KvStorage::ragged;
    CHECK(parse_model(llama_with(""), options).attentions.at(0).request.spec.page_size == 0);
}

TEST_CASE("bad options are refused by name", "[model]") {
    const auto with = [](auto member, auto value) {
        ModelOptions options;
        options.*member = value;
        return refused([&] { parse_model(llama_with(""), options); }).field();
    };
    CHECK(with(&ModelOptions::page_size, std::int64_t{0}) == "page_size");
    CHECK(with(&ModelOptions::batch, std::int64_t{0}) == "batch");
    CHECK(with(&ModelOptions::q_len, std::int64_t{-1}) == "q_len");
    CHECK(with(&ModelOptions::kv_len, std::int64_t{-1}) == "kv_len");
    CHECK(with(&ModelOptions::dtype, std::optional<DType>(DType::f32)) == "dtype");
    CHECK(with(&ModelOptions::index_dtype, DType::f32) == "index_dtype");
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
        {llama_with(R"("head_dim": 192, "v_head_dim": 128)"),
         {"full_attention", 12, 8, 8, 192, 128, rsqrt(192)}},
        {llama_with(R"("num_key_value_heads": null)"), kLlama},
        {llama_with(R"("num_key_value_heads": 2)"), {"full_attention", 12, 8, 2, 128, 128, rsqrt(128)}},
        // Scales.
        {llama_with(R"("query_pre_attn_scalar": 144)"), {"full_attention", 12, 8, 8, 128, 128, 1.0 / 12}},
        {llama_with(R"("attention_multiplier": 0.0078125)"),
         {"full_attention", 12, 8, 8, 128, 128, 0.0078125}},
        {R"({"model_type": "gpt_neo", "hidden_size": 2048, "num_heads": 16, "num_layers": 4,
             "attention_types": [[["global"], 4]]})",
         {"full_attention", 4, 16, 16, 128, 128, 1.0}},
        // Softcap; other names of windows.
        {llama_with(R"("attn_logit_softcapping": 30)"),
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
        CHECK(model.attentions.at(0).request.spec.dtype == DType::f16);  // the outer one's
        CHECK(has_note(model, "vision_config is not planned"));
    }
    // Nested twice.
    CHECK(summary(parse_model(R"({"thinker_config": {"text_config": )" + text + "}}")) == both(kLlama));
    // The inner dtype wins.
    CHECK(parse_model(R"({"dtype": "float32", "text_config": {"hidden_size": 64, "num_attention_heads": 1,
                          "num_hidden_layers": 1, "dtype": "float16"}})")
              .attentions.at(0)
              .request.spec.dtype == DType::f16);
    // The heads are outside: something else is inside.
    CHECK(summary(parse_model(llama_with(R"("text_config": {"vocab_size": 7})"))) == both(kLlama));
    // An error inside says where.
    CHECK(refused([] { parse_model(R"({"text_config": {"num_attention_heads": 8.5}})"); }).field() ==
          "text_config.num_attention_heads");
}

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
              parse_model(R"({"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 2})");
          }).field() == "num_attention_heads");
    // What changes the answer is known at any level.
    CHECK(summary(parse_model(R"({"model_type": "gemma2", "hidden_size": 2304, "num_attention_heads": 8,
                                  "num_key_value_heads": 4, "num_hidden_layers": 2})")) ==
          both({"sliding_attention", 1, 8, 4, 256, 256, 0.0625, 4095, 50.0},
               {"full_attention", 1, 8, 4, 256, 256, 0.0625, {}, 50.0}));
}

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
        {R"("sliding_window": null, "layer_types": ["sliding_attention", "full_attention", "full_attention",
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
        const Model model = parse_model(llama_with(expected.members));
        CHECK(summary(model) == attentions);
        CHECK(model.unsupported.empty());
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
    CHECK(layers("gemma3_text", R"(, "_sliding_window_pattern": 3)") ==
          "sliding_attention/prefill 8;full_attention/prefill 4;");
    CHECK(layers("gpt_oss", "") == "sliding_attention/prefill 6;full_attention/prefill 6;");
    CHECK(layers("qwen2", R"(, "sliding_window": 4096)") == "full_attention/prefill 12;");
    CHECK(layers("qwen2", R"(, "sliding_window": 4096, "use_sliding_window": true)") ==
          "full_attention/prefill 12;");
    CHECK(layers("mistral", "") == "full_attention/prefill 12;");
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
        const Model model = parse_model(llama_with(members));
        CHECK(summary(model) == both(expected));
        CHECK(has_note(model, "11 layers hold no attention"));
        CHECK(model.unsupported.empty());
    }
    // Griffin's attention is local.
    expected.layers = 4;
    expected.name = "sliding_attention";
    expected.window_left = 2047;
    CHECK(summary(parse_model(llama_with(
              R"("attention_window_size": 2048, "block_types": ["recurrent", "recurrent", "attention"])"))) ==
          both(expected));
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
        {R"("attention_chunk_size": 8192)", "chunked_attention", 3},
        {R"("attention_chunk_size": 8192, "no_rope_layers": [])", "chunked_attention", 3},
        {R"("attention_chunk_size": 8192, "no_rope_layer_interval": 6)", "chunked_attention", 2},
        {R"("attention_chunk_size": 8192, "no_rope_layers": [1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1])",
         "chunked_attention", 2},
    };
    for (const Case& expected : cases) {
        INFO(expected.members);
        Attention full = kLlama;
        full.layers = expected.full;
        const Model model = parse_model(llama_with(expected.members));
        CHECK(summary(model) == both(full));
        REQUIRE(model.unsupported.size() == 1);
        CHECK(model.unsupported[0].name == expected.name);
        CHECK(model.unsupported[0].reason == "layer type " + expected.name + " (" +
                                                 std::to_string(12 - expected.full) +
                                                 " layers) is not built in this version");
    }
    CHECK(parse_model(R"({"model_type": "a\u0007b", "hidden_size": 64, "num_attention_heads": 1,
                          "num_hidden_layers": 1})")
              .model_type == R"("a\u0007b")");
    // A type that nobody knows, with text that is not for a terminal.
    const Model model =
        parse_model(llama_with(R"("num_hidden_layers_": 1, "block_types": ["x\u001b[31m\n"])"));
    CHECK(model.attentions.empty());
    REQUIRE(model.unsupported.size() == 1);
    CHECK(model.unsupported[0].name == "\"x\\u001b[31m\\n\"");
}

TEST_CASE("heads that no kernel takes are listed", "[model]") {
    const Model model = parse_model(llama_with(R"("head_dim": 100)"));
    CHECK(model.attentions.empty());
    REQUIRE(model.unsupported.size() == 1);
    CHECK(model.unsupported[0].name == "full_attention");
    CHECK(contains(model.unsupported[0].reason, "head_dim_qk: 100 is not accepted"));
    // Gemma 4's global layers have heads of 512; its scale is 1.
    const Model gemma =
        parse_model(R"({"model_type": "gemma4_text", "hidden_size": 2304, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512, "num_hidden_layers": 30,
        "sliding_window": 512, "sliding_window_pattern": 6})");
    CHECK(summary(gemma) == both({"sliding_attention", 25, 8, 4, 256, 256, 1.0, 511}));
    REQUIRE(gemma.unsupported.size() == 1);
    CHECK(contains(gemma.unsupported[0].reason, "512"));
}

// ---- latent attention ----

TEST_CASE("latent attention: prefill planned, decode listed", "[model]") {
    const std::string base = R"({"model_type": "deepseek_v2", "hidden_size": 2048, "num_attention_heads": 16,
        "num_key_value_heads": 16, "num_hidden_layers": 27, "kv_lora_rank": 512, "q_lora_rank": null,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 64)";
    const auto scale = [&](const std::string& members) {
        const Model model = parse_model(base + members + "}");
        REQUIRE(model.attentions.size() == 1);
        CHECK(model.attentions[0].name == "full_attention/prefill");
        CHECK(model.attentions[0].request.spec.head_dim_qk == 192);
        CHECK(model.attentions[0].request.spec.head_dim_vo == 128);
        CHECK(model.unsupported.size() == 1);
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
    // Heads that no kernel takes: nothing is planned, both parts are listed.
    const Model odd = parse_model(R"({"num_attention_heads": 16, "num_hidden_layers": 2, "kv_lora_rank": 512,
        "qk_nope_head_dim": 250, "qk_rope_head_dim": 64, "v_head_dim": 128})");
    CHECK(odd.attentions.empty());
    CHECK(odd.unsupported.size() == 2);
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
            "query_pre_attn_scalar": 64, "sliding_window": null})",
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
    // EmbeddingGemma's config.json does not say how far its window looks ahead.
    const Model gemma = parse_model(R"({"model_type": "gemma3_text", "hidden_size": 768, "head_dim": 256,
        "num_attention_heads": 3, "num_key_value_heads": 1, "num_hidden_layers": 24, "use_bidirectional_attention": true,
        "sliding_window": 512})");
    CHECK(gemma.attentions.size() == 1);
    REQUIRE(gemma.unsupported.size() == 1);
    CHECK(gemma.unsupported[0].name == "sliding_attention");
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
    CHECK(summary(t5gemma) == both({"full_attention", 26, 8, 4, 256, 256, 0.0625}));
}

TEST_CASE("what no kernel computes is listed instead of planned wrongly", "[model]") {
    const std::pair<std::string, std::string> cases[] = {
        {R"({"model_type": "t5", "d_model": 512, "d_kv": 64, "num_heads": 8, "num_layers": 6,
             "relative_attention_num_buckets": 32})",
         "relative_attention_num_buckets"},
        {R"({"model_type": "deberta-v2", "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12,
             "relative_attention": true})",
         "relative_attention"},
        {llama_with(R"("position_embedding_type": "relative_key_query")"), "position_embedding_type"},
        {llama_with(R"("blocksparse_block_size": 64)"), "blocksparse_block_size"},
        {llama_with(R"("index_topk": 2048)"), "index_topk"},
        {llama_with(R"("attention_window": [512, 512])"), "attention_window"},
        {llama_with(R"("scale_attn_by_inverse_layer_idx": true)"), "scale_attn_by_inverse_layer_idx"},
        {llama_with(R"("hybrid_layer_pattern": [0, 1])"), "hybrid_layer_pattern"},
        {llama_with(R"("is_causal": false, "alibi": true)"), "ALiBi"},
    };
    for (const auto& [config, reason] : cases) {
        INFO(config);
        const Model model = parse_model(config);
        CHECK(model.attentions.empty());
        REQUIRE(model.unsupported.size() == 1);
        CHECK(contains(model.unsupported[0].reason, reason));
    }
    CHECK(summary(
              parse_model(llama_with(R"("scale_attn_by_inverse_layer_idx": false, "relative_attention": null,
        "position_embedding_type": "absolute")"))) == both(kLlama));
}

// ---- dtypes, text, bad configs ----

TEST_CASE("dtypes by any of their names", "[model]") {
    const auto dtype = [](const std::string& members) {
        const Model model = parse_model(
            R"({"hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 1)" + members + "}");
        return std::pair(model.attentions.at(0).request.spec.dtype, has_note(model, "planned as bf16"));
    };
    CHECK(dtype(R"(, "torch_dtype": "bfloat16")") == std::pair(DType::bf16, false));
    CHECK(dtype(R"(, "dtype": "float16")") == std::pair(DType::f16, false));
    CHECK(dtype(R"(, "torch_dtype": "torch.float16")") == std::pair(DType::f16, false));
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
         "nothing"},
        // Values.
        {llama_with(R"("head_dim": 0)"), "head_dim", "from 1"},
        {llama_with(R"("head_dim": -64)"), "head_dim", "from 1"},
        {llama_with(R"("head_dim": "64")"), "head_dim", "an integer"},
        {llama_with(R"("head_dim": 64.0)"), "head_dim", "an integer"},
        {llama_with(R"("head_dim": 99999999999999999999)"), "head_dim", "an integer"},
        {llama_with(R"("head_dim": 18446744073709551615)"), "head_dim", "an integer"},
        {llama_with(R"("num_key_value_heads": 3)"), "kv_heads", "a divisor of q_heads"},
        {llama_with(R"("num_key_value_heads": 0)"), "num_key_value_heads", "from 1"},
        {llama_with(R"("num_key_value_heads": [1, 2])"), "num_key_value_heads", "a list of 2"},
        {llama_with(R"("sliding_window": 0)"), "sliding_window", "from 1"},
        {llama_with(R"("sliding_window": "4k")"), "sliding_window", "an integer"},
        {llama_with(R"("sliding_window": 9, "use_sliding_window": 1)"), "use_sliding_window",
         "true or false"},
        {llama_with(R"("sliding_window": 9, "max_window_layers": -1)"), "max_window_layers", "from 0"},
        {llama_with(R"("sliding_window_pattern": 0)"), "sliding_window_pattern", "from 1"},
        {llama_with(R"("sliding_window_pattern": "")"), "sliding_window_pattern", "from 1"},
        {llama_with(R"("layer_types": "full_attention")"), "layer_types", "a list"},
        {llama_with(R"("layer_types": [])"), "layer_types", "a list"},
        {llama_with(R"("layer_types": [1])"), "layer_types", "a list of strings"},
        {llama_with(R"("layer_types": ["full_attention"])"), "layer_types", "each of the 12 layers"},
        {llama_with(R"("attention_types": [["global", 12]])"), "attention_types", "a list"},
        {llama_with(R"("attention_types": [[["global"], 99999999999]])"), "attention_types", "pairs"},
        {llama_with(R"("attn_type_list": ["1"])"), "attn_type_list", "a list of integers"},
        {llama_with(R"("attn_layer_period": 0)"), "attn_layer_period", "from 1"},
        {llama_with(R"("hybrid_override_pattern": "M*")"), "hybrid_override_pattern",
         "each of the 12 layers"},
        {llama_with(R"("attn_logit_softcapping": 0)"), "attn_logit_softcapping", "above 0"},
        {llama_with(R"("attn_logit_softcapping": true)"), "attn_logit_softcapping", "a number"},
        {llama_with(R"("query_pre_attn_scalar": -1)"), "query_pre_attn_scalar", "above 0"},
        {llama_with(R"("attention_multiplier": 1e-60)"), "scale", "a finite number above 0"},
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
        {"{\"num_attention_heads\": 8, \"num_attention_heads\": 9}", "num_attention_heads", "given twice"},
        {R"({"text_config": {"num_attention_heads": -1}})", "text_config.num_attention_heads", "from 1"},
    };
    for (const Bad& bad : cases) {
        INFO(bad.config);
        const InvalidRequest error = refused([&] { parse_model(bad.config); });
        INFO(error.what());
        CHECK(error.field() == bad.field);
        CHECK(contains(error.what(), bad.message));
    }
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
                parse_model(text);
                ++planned;
            } catch (const Error&) {
                ++refusals;
            }
        }
    }
    CHECK(planned > 500);
    CHECK(refusals > 500);
}
