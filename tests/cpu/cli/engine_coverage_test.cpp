// What an engine asks for of each kind of model, request by request.
#include "cli/asked/engine_coverage.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "problem/expect.hpp"
#include "problem/model_summary.hpp"
#include "problem/request/request_fields.hpp"

using namespace attnsmith;
using attnsmith::cli::Engine;
using attnsmith::cli::engine_coverage;
using test::contains;
using test::refused;

namespace {

using Names = std::vector<std::string>;
using Kinds = std::set<std::string>;

Coverage asked(const std::string& config, const nlohmann::json& options = nlohmann::json::object()) {
    return engine_coverage(Engine::vllm, config, options);
}

Coverage asked_of_file(const char* name, const nlohmann::json& options = nlohmann::json::object()) {
    return asked(test::read_file(test::kModels / name), options);
}

Names names(const Coverage& coverage) {
    Names names;
    for (const ModelAttention& attention : coverage.attentions) names.push_back(attention.name);
    return names;
}

const ModelAttention& attention(const Coverage& coverage, const std::string& name) {
    INFO(name);
    const auto found = std::ranges::find(coverage.attentions, name, &ModelAttention::name);
    REQUIRE(found != coverage.attentions.end());
    return *found;
}

// The attention of this name is this request. Its JSON leaves out defaults.
void check_request(const Coverage& coverage, const std::string& name, const std::string& request) {
    INFO(name);
    CHECK(attention(coverage, name).request.spec == parse_request("{" + request + "}").spec);
}

const std::string kPages = R"("kv": "paged", "page_order": "HND", "page_size": 16)";
const std::string kLlama = R"("head_dim": 128, "q_heads": 32, "kv_heads": 8, )";
const std::string kLlamaAppend =
    R"("op": "append", "slots": "mapping", "head_dim": 128, "q_heads": 8, "kv_heads": 8, )";
const std::string kBert = R"({"model_type": "bert", "hidden_size": 768, "num_attention_heads": 12,
                              "num_hidden_layers": 12)";
const std::string kWhisper =
    R"({"model_type": "whisper", "d_model": 512, "encoder_layers": 6, "encoder_attention_heads": 8,
        "decoder_layers": 6, "decoder_attention_heads": 8, "is_encoder_decoder": true,
        "torch_dtype": "float16"})";

}  // namespace

TEST_CASE("vLLM asks for a decoder's attention over its pages, and for the append that writes them") {
    const Coverage coverage = asked_of_file("llama-3.1-8b.json");
    CHECK(names(coverage) ==
          Names{"full_attention/prefill", "full_attention/decode", "full_attention/append"});
    for (const char* phase : {"full_attention/prefill", "full_attention/decode"})
        check_request(coverage, phase, kLlama + R"("mask": "causal", )" + kPages);
    check_request(coverage, "full_attention/append", kLlamaAppend + kPages);
    CHECK(attention(coverage, "full_attention/append").phase == "append");
    CHECK(attention(coverage, "full_attention/append").layers == 32);
    CHECK(coverage.specs().size() == 2);
    CHECK((coverage.unsupported.empty() && coverage.skipped.empty() && coverage.warnings.empty()));
}

TEST_CASE("what vLLM's user decides is in all requests") {
    const Coverage coverage = asked_of_file("llama-3.1-8b.json", {{"dtype", "fp16"},
                                                                  {"page_size", 64},
                                                                  {"kv_dtype", "fp8_e5m2"},
                                                                  {"consistency", "bitwise"},
                                                                  {"tensor_parallel", 4}});
    const std::string stored =
        R"("dtype": "fp16", "kv": "paged", "page_order": "HND", "page_size": 64, "kv_dtype": "e5m2",
           "kv_scale": "tensor")";
    check_request(coverage, "full_attention/decode",
                  R"("head_dim": 128, "q_heads": 8, "kv_heads": 2, "mask": "causal",
                     "consistency": "bitwise", )" +
                      stored);
    check_request(coverage, "full_attention/append",
                  R"("op": "append", "head_dim": 128, "q_heads": 2, "kv_heads": 2, )" + stored);
    const Coverage several =
        asked_of_file("llama-3.1-8b.json", {{"page_size", {16, 32}}, {"kv_dtype", {"bf16", "fp8"}}});
    CHECK(std::ranges::count(several.attentions, std::string("append"), &ModelAttention::phase) == 4);
    check_request(several, "full_attention/append (page_size 32, kv_dtype e4m3)",
                  kLlamaAppend + R"("kv": "paged", "page_order": "HND", "page_size": 32, "kv_dtype": "e4m3",
                                    "kv_scale": "tensor")");
    CHECK(several.specs().size() == 8);
}

TEST_CASE("vLLM's words for the dtype of a cache are taken") {
    const auto decode = [](const nlohmann::json& word) {
        return attention(asked_of_file("llama-3.1-8b.json", {{"kv_dtype", word}}), "full_attention/decode")
            .request.spec;
    };
    for (const char* word : {"fp8", "fp8_e4m3", "e4m3"}) {
        CHECK(decode(word).kv_dtype == DType::e4m3);
        CHECK(decode(word).kv_scale == KvScale::tensor);
    }
    CHECK(decode("fp8_e5m2").kv_dtype == DType::e5m2);
    for (const char* word : {"auto", "bfloat16"}) {
        CHECK(decode(word).kv_dtype == DType::bf16);
        CHECK(decode(word).kv_scale == KvScale::none);
    }
    CHECK(contains(refused([&] { decode("nvfp4"); }).accepted(), "auto, fp8, fp8_e4m3"));
    CHECK(contains(refused([&] { decode({"auto", "fp8"}); }).accepted(), "\"auto\" alone"));
    CHECK(decode("fp8_per_token_head").kv_dtype == DType::e4m3);
    CHECK(decode("fp8_per_token_head").kv_scale == KvScale::token_head);
    CHECK(decode("fp8_per_token_head").alignment == 4);  // V begins after 128 columns and a scale
    CHECK(contains(
        asked_of_file("deepseek-v3.json", {{"kv_dtype", "fp8_per_token_head"}}).unsupported[0].reason,
        "no kv_dtype fp8_per_token_head"));
}

TEST_CASE("a model that comes with scales of its cache has what vLLM's backend can store") {
    const auto with_scheme = [](const std::string& strategy) {
        return test::llama_with(
            R"("quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": false,
                "symmetric": true, "strategy": ")" +
            strategy + R"("}})");
    };
    for (const nlohmann::json& options : {nlohmann::json::object(), nlohmann::json{{"kv_dtype", "auto"}}}) {
        const Coverage coverage = asked(with_scheme("tensor"), options);
        CHECK(attention(coverage, "full_attention/append").request.spec.kv_dtype == DType::e4m3);
        CHECK(attention(coverage, "full_attention/append").request.spec.kv_scale == KvScale::tensor);
    }
    const Coverage of_heads = asked(with_scheme("attn_head"));
    CHECK(of_heads.unsupported.empty());
    CHECK(attention(of_heads, "full_attention/append").request.spec.kv_scale == KvScale::head);
    CHECK(asked(with_scheme("attn_head"), {{"kv_dtype", "fp8"}}).unsupported.empty());
    CHECK(asked(with_scheme("attn_head"), {{"kv_dtype", "fp8_per_token_head"}}).unsupported.empty());
}

TEST_CASE("windows, sinks and a softcap are the attention's, and one append is of all layers") {
    const Coverage gpt = asked_of_file("gpt-oss-20b.json");
    const std::string heads = R"("head_dim": 64, "q_heads": 64, "kv_heads": 8, "mask": "causal", )";
    check_request(gpt, "full_attention/decode", heads + R"("sink": true, )" + kPages);
    check_request(gpt, "sliding_attention/decode", heads + R"("sink": true, "window_left": 127, )" + kPages);
    for (const char* name : {"full_attention/append", "sliding_attention/append"})
        check_request(gpt, name, R"("op": "append", "head_dim": 64, "q_heads": 8, "kv_heads": 8, )" + kPages);
    CHECK(gpt.specs().size() == 3);

    const Coverage gemma = asked_of_file("gemma-2-9b.json");
    const std::string capped =
        R"("head_dim": 256, "q_heads": 16, "kv_heads": 8, "mask": "causal", "softcap": 50, "scale": 0.0625, )";
    check_request(gemma, "full_attention/prefill", capped + kPages);
    check_request(gemma, "sliding_attention/prefill", capped + R"("window_left": 4095, )" + kPages);
    CHECK(gemma.specs().size() == 3);
}

TEST_CASE("latents are appended and decoded as such, and prefilled with expanded heads") {
    const Coverage coverage =
        asked_of_file("deepseek-v3.json", {{"kv_dtype", "fp8"}, {"page_size", 64}, {"tensor_parallel", 8}});
    CHECK(names(coverage) == Names{"full_attention/prefill", "full_attention/context",
                                   "full_attention/decode", "full_attention/append"});
    const double scale = *attention(coverage, "full_attention/decode").request.spec.scale;
    const std::string scaled = R"("scale": )" + nlohmann::json(scale).dump();
    const std::string expanded =
        R"("head_dim_qk": 192, "head_dim_vo": 128, "q_heads": 16, "kv": "ragged", )" + scaled;
    check_request(coverage, "full_attention/prefill", R"("mask": "causal", )" + expanded);
    check_request(coverage, "full_attention/context", R"("lse": true, )" + expanded);
    const std::string latents =
        R"("head_dim_ckv": 512, "head_dim_kpe": 64, "kv": "paged", "page_size": 64, "kv_dtype": "e4m3",
           "kv_scale": "tensor")";
    check_request(coverage, "full_attention/decode",
                  R"("op": "mla", "mask": "causal", "q_heads": 16, )" + latents + ", " + scaled);
    check_request(coverage, "full_attention/append", R"("op": "append", "q_heads": 1, )" + latents);
    Kinds phases;
    for (const ModelAttention& one : coverage.attentions) phases.insert(one.phase);
    CHECK(phases == Kinds{"prefill", "decode", "append"});  // those that schemas of plans have
    CHECK(coverage.specs().size() == 4);
}

TEST_CASE("a decode of latents that is not supported leaves the prefill") {
    const Coverage coverage = asked_of_file("partial/latent-500.json");
    CHECK(names(coverage) == Names{"full_attention/prefill", "full_attention/context"});
    REQUIRE(coverage.unsupported.size() == 1);
    CHECK(coverage.unsupported[0].name == "full_attention/decode");
}

TEST_CASE("an encoder is ragged, and writes no cache") {
    const std::string ragged = R"("head_dim": 64, "q_heads": 12, "kv": "ragged")";
    const Coverage coverage = asked(kBert + R"(, "torch_dtype": "bfloat16"})");
    CHECK(names(coverage) == Names{"full_attention/prefill"});
    check_request(coverage, "full_attention/prefill", ragged);
    CHECK((coverage.unsupported.empty() && coverage.skipped.empty()));
    CHECK(coverage.attentions[0].notes.empty());

    // vLLM then chooses one of two.
    for (const char* dtype : {R"(, "torch_dtype": "float32"})", "}"}) {
        const Coverage either = asked(kBert + dtype);
        CHECK(names(either) ==
              Names{"full_attention/prefill (dtype fp16)", "full_attention/prefill (dtype bf16)"});
        check_request(either, "full_attention/prefill (dtype fp16)", ragged + R"(, "dtype": "fp16")");
    }
    CHECK(names(asked(kBert + "}", {{"dtype", "fp16"}})) == Names{"full_attention/prefill"});

    const Coverage stored =
        asked(kBert + R"(, "torch_dtype": "float16"})", {{"kv_dtype", "fp8"}, {"page_size", 32}});
    check_request(stored, "full_attention/prefill", ragged + R"(, "dtype": "fp16")");
    CHECK(stored.skipped ==
          std::vector<SkippedPart>{{"page_size with kv ragged", "only paged KV has pages"}});
}

TEST_CASE("cross attention is that of the decoder's heads without a mask") {
    const Coverage coverage = asked(kWhisper);
    CHECK(names(coverage) == Names{"full_attention/prefill", "full_attention/decode", "full_attention/append",
                                   "cross_attention/prefill", "cross_attention/decode",
                                   "cross_attention/append"});
    const std::string heads = R"("head_dim": 64, "q_heads": 8, "dtype": "fp16", )";
    check_request(coverage, "full_attention/decode", R"("mask": "causal", )" + heads + kPages);
    check_request(coverage, "cross_attention/decode", heads + kPages);
    check_request(coverage, "cross_attention/append", R"("op": "append", )" + heads + kPages);
    CHECK(coverage.specs().size() == 3);
    CHECK(coverage.unsupported.empty());  // vLLM computes the encoder by another backend

    const Coverage gemma = asked(
        R"({"model_type": "t5gemma", "is_encoder_decoder": true, "encoder": {"x": 1}, "decoder":
            {"model_type": "t5_gemma_module", "hidden_size": 2304, "num_hidden_layers": 26,
             "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
             "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 256, "torch_dtype": "bfloat16"}})");
    CHECK(attention(gemma, "sliding_attention/decode").layers == 13);
    CHECK(attention(gemma, "cross_attention/decode").layers == 26);
    check_request(
        gemma, "cross_attention/decode",
        R"("head_dim": 256, "q_heads": 8, "kv_heads": 4, "softcap": 50, "scale": 0.0625, )" + kPages);

    // The heads of a type that is not known may differ.
    const Coverage unknown = asked(test::of_type("frobnicator", R"(, "is_encoder_decoder": true)"));
    CHECK(std::ranges::any_of(unknown.unsupported,
                              [](const UnsupportedPart& part) { return part.name == "cross_attention"; }));
}

TEST_CASE("what vLLM computes by other backends is not asked for") {
    const Coverage coverage = asked(test::untyped_with(R"("full_attention_interval": 4)"));
    CHECK(attention(coverage, "full_attention/append").layers == 3);
    CHECK(coverage.unsupported.empty());  // the linear attention of 9 layers
}

TEST_CASE("what vLLM's backend does not serve is refused by name") {
    const InvalidRequest size = refused([] {
        asked_of_file("llama-3.1-8b.json", {{"page_size", {16, 24}}});
    });
    CHECK(size.field() == "page_size");
    CHECK(contains(size.accepted(), "multiple of 16"));
    // 256 + 32 columns, as MiniCPM3 has them.
    nlohmann::json config = nlohmann::json::parse(test::read_file(test::kModels / "deepseek-v3.json"));
    config["kv_lora_rank"] = 256, config["qk_rope_head_dim"] = 32;
    const Coverage coverage = asked(config.dump());
    REQUIRE(coverage.unsupported.size() == 1);
    CHECK(coverage.unsupported[0].name == "full_attention/decode");
    CHECK(contains(coverage.unsupported[0].reason, "320 and 576 columns, none of 288"));
}

TEST_CASE("ranks that divide the keys have the queries of all, and merge") {
    const auto divided = [](const char* model, const nlohmann::json& options) {
        return engine_coverage(Engine::vllm, test::read_file(test::kModels / model), options, 2);
    };
    const Coverage llama = divided("llama-3.1-70b.json", {{"tensor_parallel", 8}, {"kv_dtype", "fp8"}});
    CHECK(names(llama) == Names{"full_attention/decode", "full_attention/new_tokens", "full_attention/merge",
                                "full_attention/append"});
    const std::string stored = R"(, "kv_dtype": "e4m3", "kv_scale": "tensor")";
    check_request(llama, "full_attention/decode",
                  R"("head_dim": 128, "q_heads": 16, "kv_heads": 1, )" + kPages + stored);
    check_request(llama, "full_attention/new_tokens",
                  R"("head_dim": 128, "q_heads": 8, "kv_heads": 1, "mask": "causal", "kv": "ragged")");
    check_request(llama, "full_attention/merge", R"("op": "merge", "head_dim": 128, "q_heads": 8)");
    check_request(llama, "full_attention/append",
                  R"("op": "append", "slots": "mapping", "head_dim": 128, "q_heads": 1, "kv_heads": 1, )" +
                      kPages + stored);

    const Coverage latents = divided("deepseek-v3.json", {{"tensor_parallel", 8}});
    CHECK(attention(latents, "full_attention/decode").request.spec.q_heads == 32);
    CHECK(attention(latents, "full_attention/prefill").request.spec.q_heads == 16);

    const Coverage windows = divided("gpt-oss-20b.json", nlohmann::json::object());
    CHECK(windows.unsupported.size() == 4);
    CHECK(contains(windows.unsupported[0].reason, "no context parallelism"));
    for (const ModelAttention& one : windows.attentions) CHECK(one.phase == "append");
}

TEST_CASE("an engine is known by its name, and decides how its cache lies in memory") {
    CHECK(cli::engine_names() == std::vector<std::string_view>{"vllm"});
    CHECK(cli::find_engine("vllm") == Engine::vllm);
    CHECK_FALSE(cli::find_engine("vLLM"));
    CHECK(cli::name_of(Engine::vllm) == "vllm");
    Kinds decided;
    for (const problem::RequestField& field : problem::request_fields()) {
        if (cli::decides(Engine::vllm, field)) decided.insert(std::string(field.name));
    }
    CHECK(decided == Kinds{"alignment", "check_slots", "index_dtype", "kv", "kv_scale", "lse", "o_dtype",
                           "page_order", "precision", "q_dtype", "rope_table", "slots"});
}
