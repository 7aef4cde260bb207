// Models that multiply q by a factor of its position: a note tells the caller, who gives q.
#include <string>
#include <vector>

#include "attnsmith/spec.hpp"
#include "expect.hpp"
#include "model_summary.hpp"

using namespace attnsmith;
using namespace attnsmith::test;

namespace {

// The notes of an attention that say what q is multiplied by.
std::vector<std::string> factors(const Model& model, const std::string& name) {
    std::vector<std::string> found;
    for (const ModelAttention& attention : model.attentions) {
        if (attention.name != name) continue;
        for (const std::string& note : attention.notes)
            if (contains(note, "multiply q")) found.push_back(note);
    }
    return found;
}

std::string factor(const Model& model, const std::string& name) {
    const std::vector<std::string> found = factors(model, name);
    REQUIRE(found.size() == 1);
    return found.front();
}

}  // namespace

TEST_CASE("Llama 4 multiplies q in its layers without rotary positions alone", "[model]") {
    const Model model = parse_model(of_type("llama4_text"));
    for (const std::string phase : {"prefill", "decode"}) {
        INFO(phase);
        CHECK(factors(model, "chunked_attention/" + phase).empty());
        CHECK(contains(factor(model, "full_attention/" + phase),
                       "attn_temperature_tuning: these layers have no rotary positions and multiply q by "
                       "log(floor((position + 1) / 8192) + 1) * 0.1 + 1"));
    }
    const Model own = parse_model(of_type("llama4_text", R"(, "floor_scale": 4096, "attn_scale": 0.2)"));
    CHECK(contains(factor(own, "full_attention/decode"), "log(floor((position + 1) / 4096) + 1) * 0.2 + 1"));

    const Model rotated =
        parse_model(of_type("llama4_text", R"(, "no_rope_layers": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])"));
    REQUIRE(rotated.attentions.size() == 2);
    CHECK(factors(rotated, "chunked_attention/prefill").empty());
    CHECK(factors(rotated, "chunked_attention/decode").empty());

    for (const char* off : {R"(, "attn_temperature_tuning": false)", R"(, "attn_temperature_tuning": 0)",
                            R"(, "attn_scale": 0)"})
        CHECK(factors(parse_model(of_type("llama4_text", off)), "full_attention/decode").empty());
}

TEST_CASE("Llama 4's factor follows the rotary positions where the types of layers are listed", "[model]") {
    const Model model = parse_model(R"({"model_type": "llama4_text", "hidden_size": 1024,
        "num_attention_heads": 16, "num_hidden_layers": 4, "no_rope_layers": [1, 0, 1, 0], "layer_types":
        ["full_attention", "full_attention", "chunked_attention", "full_attention"]})");
    CHECK(contains(factor(model, "full_attention/decode"),
                   "the 2 of these layers without rotary positions multiply q"));
    CHECK(factors(model, "chunked_attention/decode").empty());
}

TEST_CASE("Qwen's first models multiply q beyond the length that they were trained with", "[model]") {
    const std::string expected =
        "use_logn_attn: all layers multiply q by log(position + 1) / log(2048) from "
        "position 2048 on";
    CHECK(contains(factor(parse_model(of_type("qwen", R"(, "use_logn_attn": true, "seq_length": 2048)")),
                          "full_attention/decode"),
                   expected));
    // The class has it where the file does not say otherwise.
    CHECK(contains(factor(parse_model(of_type("qwen", R"(, "seq_length": 2048)")), "full_attention/prefill"),
                   expected));
    CHECK(contains(factor(parse_model(of_type("qwen")), "full_attention/prefill"),
                   "which the config does not give"));
    CHECK(factors(parse_model(of_type("qwen", R"(, "use_logn_attn": false)")), "full_attention/decode")
              .empty());
}

TEST_CASE("Ministral 3 multiplies q by a factor of its rotary parameters", "[model]") {
    const auto with = [](const std::string& type, const std::string& parameters) {
        return parse_model(of_type(type, R"(, "rope_parameters": )" + parameters));
    };
    const std::string kParameters =
        R"({"llama_4_scaling_beta": 0.2, "original_max_position_embeddings": 4096})";
    const std::string kFactor =
        "by 1 + 0.2 * log(1 + floor(position / 4096)), which is not 1 from position 4096 on";
    CHECK(contains(factor(with("ministral3", kParameters), "full_attention/decode"), kFactor));
    CHECK(contains(factor(with("invented", kParameters), "full_attention/decode"), kFactor));
    // The class has both numbers where the file has no parameters at all.
    CHECK(contains(factor(parse_model(of_type("ministral3")), "full_attention/decode"),
                   "by 1 + 0.1 * log(1 + floor(position / 16384))"));
    CHECK(factors(with("ministral3", R"({"llama_4_scaling_beta": 0})"), "full_attention/decode").empty());
    CHECK(factors(with("ministral3", R"({"rope_theta": 1e6})"), "full_attention/decode").empty());
    const Model llama = with("llama", kParameters);
    CHECK(factors(llama, "full_attention/decode").empty());
    CHECK(warned(llama, WarningKind::unread_field) ==
          std::vector<std::string>{"rope_parameters.llama_4_scaling_beta"});
}

TEST_CASE("a size of chunks of an unknown type is planned as Llama 4's, and said to be", "[model]") {
    const auto said = [](const std::string& members) {
        const Model model = parse_model(of_type("quasar", members));
        std::string text;
        for (const ModelWarning& warning : model.warnings) {
            if (warning.kind == WarningKind::approximated) text += warning.field + ": " + warning.text;
        }
        return text;
    };
    CHECK(contains(
        said(R"(, "attention_chunk_size": 8192)"),
        "attention_chunk_size: attention_chunk_size does not say which layers see chunks: planned as "
        "Llama 4 has it, where layers 4, 8, 12 and so on see all keys"));
    CHECK(contains(said(R"(, "attention_chunk_size": 8192, "no_rope_layer_interval": 2)"),
                   "the layers without rotary positions see all keys"));
    const std::string listed = R"(, "attention_chunk_size": 8192, "layer_types": ["chunked_attention",
        "full_attention", "chunked_attention", "full_attention", "chunked_attention", "full_attention",
        "chunked_attention", "full_attention", "chunked_attention", "full_attention", "chunked_attention",
        "full_attention"])";
    CHECK_FALSE(contains(said(listed), "as Llama 4 has it"));
    CHECK(warned(parse_model(of_type("llama4_text")), WarningKind::approximated).empty());
}
