// A model and its options as JSON.
#include <nlohmann/json.hpp>

#include "attnsmith/error.hpp"
#include "attnsmith/spec.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using nlohmann::json;

namespace {

std::string refused_field(const char* text) {
    try {
        (void)parse_model_options(text);
    } catch (const InvalidRequest& error) {
        return error.field();
    }
    return "nothing";
}

}  // namespace

TEST_CASE("Options that are not given are the defaults") {
    const ModelOptions options = parse_model_options("{}"), defaults;
    CHECK(options.dtype == defaults.dtype);
    CHECK(options.kv == defaults.kv);
    CHECK(options.page_size == defaults.page_size);
    CHECK(options.batch == defaults.batch);
    CHECK(options.q_len == defaults.q_len);
    CHECK(options.kv_len == defaults.kv_len);
    CHECK(options.tensor_parallel == defaults.tensor_parallel);
    CHECK(options.alignment == defaults.alignment);
    CHECK(options.lse == defaults.lse);
    CHECK(options.o_dtype == defaults.o_dtype);
    CHECK(options.precision == defaults.precision);
    CHECK(options.consistency == defaults.consistency);
    CHECK_FALSE(options.strict);
}

TEST_CASE("Each option is read") {
    const ModelOptions options = parse_model_options(
        R"({"dtype": "fp16", "kv": "dense", "page_size": 32, "page_order": "HND", "index_dtype": "int64",
            "batch": 2, "q_len": 3, "kv_len": 4, "tensor_parallel": 5, "alignment": 8, "lse": true,
            "o_dtype": "fp32", "precision": "high", "consistency": "bitwise", "strict": true})");
    CHECK(options.dtype == DType::fp16);
    CHECK(options.kv == KvStorage::dense);
    CHECK(options.page_size == 32);
    CHECK(options.page_order == PageOrder::HND);
    CHECK(options.index_dtype == DType::int64);
    CHECK((options.batch == 2 && options.q_len == 3 && options.kv_len == 4));
    CHECK(options.tensor_parallel == 5);
    CHECK(options.alignment == 8);
    CHECK(options.lse);
    CHECK(options.o_dtype == DType::fp32);
    CHECK(options.precision == Precision::high);
    CHECK(options.consistency == Consistency::bitwise);
    CHECK(options.strict);
}

TEST_CASE("Options that are wrong are named") {
    CHECK(refused_field("[]") == "options");
    CHECK(refused_field(R"({"head_dim": 64})") == "head_dim");
    CHECK(refused_field(R"({"page_sise": 64})") == "page_sise");
    CHECK(refused_field(R"({"kv": 1})") == "kv");
    CHECK(refused_field(R"({"batch": 1.5})") == "batch");
    CHECK(refused_field(R"({"alignment": "8"})") == "alignment");
    CHECK(refused_field(R"({"lse": 1})") == "lse");
    CHECK(refused_field(R"({"strict": "yes"})") == "strict");
    CHECK(refused_field(R"({"tensor_parallel": true})") == "tensor_parallel");
    CHECK(refused_field(R"({"tensor_parallel": -1})") == "tensor_parallel");
    CHECK(refused_field(R"({"tensor_parallel": 18446744073709551615})") == "tensor_parallel");
}

TEST_CASE("What a program chooses reaches every attention of a model") {
    const char* const config =
        R"({"model_type": "mistral", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
            "num_key_value_heads": 2, "sliding_window": 64, "torch_dtype": "bfloat16"})";
    const Model model = parse_model(
        config, parse_model_options(R"({"dtype": "fp16", "lse": true, "kv": "paged", "page_order": "HND",
            "page_size": 64, "index_dtype": "int64", "alignment": 4, "o_dtype": "fp32",
            "precision": "high", "consistency": "bitwise"})"));
    REQUIRE(model.attentions.size() == 2);
    for (const ModelAttention& attention : model.attentions) {
        const AttentionSpec& spec = attention.request.spec;
        CHECK((spec.dtype == DType::fp16 && spec.lse && spec.index_dtype == DType::int64));
        CHECK((spec.kv == KvStorage::paged && spec.page_order == PageOrder::HND && spec.page_size == 64));
        CHECK((spec.alignment == 4 && spec.o_dtype == DType::fp32 && spec.precision == Precision::high));
        CHECK(spec.consistency == Consistency::bitwise);
    }
}

TEST_CASE("A model's requests are requests") {
    const Model model = parse_model(
        R"({"model_type": "mistral", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
            "num_key_value_heads": 2, "sliding_window": 64, "torch_dtype": "bfloat16"})");
    const json written = json::parse(to_json(model));
    CHECK(written["model_type"] == "mistral");
    REQUIRE(written["attentions"].size() == model.attentions.size());
    for (std::size_t i = 0; i < model.attentions.size(); ++i) {
        const json& attention = written["attentions"][i];
        CHECK(attention["name"] == model.attentions[i].name);
        CHECK(attention["phase"] == model.attentions[i].phase);
        CHECK(attention["layers"] == model.attentions[i].layers);
        CHECK(attention["notes"].size() == model.attentions[i].notes.size());
        CHECK(parse_request(attention["request"].dump()) == model.attentions[i].request);
    }
    CHECK(written["unsupported"].empty());
    CHECK(written["warnings"].empty());
}

TEST_CASE("A model's warnings are written with it") {
    Model model;
    model.warnings = {{WarningKind::unknown_type, "model_type", "one"},
                      {WarningKind::unread_field, "text_config.head_rule", "two"},
                      {WarningKind::not_planned, "vision_config", "three"},
                      {WarningKind::approximated, "model_type", "four"}};
    const json written = json::parse(to_json(model));
    CHECK(written["warnings"] == json::parse(R"([
        {"kind": "unknown_type", "field": "model_type", "text": "one"},
        {"kind": "unread_field", "field": "text_config.head_rule", "text": "two"},
        {"kind": "not_planned", "field": "vision_config", "text": "three"},
        {"kind": "approximated", "field": "model_type", "text": "four"}])"));
}

TEST_CASE("Names that are no UTF-8 do not keep a model from being written") {
    Model model;
    model.model_type = "\xff";
    model.unsupported = {{"part", "because"}};
    const json written = json::parse(to_json(model));
    CHECK(written["model_type"] == "\xef\xbf\xbd");
    CHECK(written["unsupported"][0]["reason"] == "because");
}
