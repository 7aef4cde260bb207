// What is not planned of a model whose type the reader does not know.
#include <string>

#include "attnsmith/spec.hpp"
#include "expect.hpp"
#include "model_summary.hpp"

using namespace attnsmith;
using namespace attnsmith::test;

namespace {

std::string of_unknown_type(const std::string& members) {
    return decoder_with(R"("model_type": "quasar", )", members);
}

void check_refused(const std::string& members, const std::string& reason) {
    INFO(members);
    const Model model = parse_model(of_unknown_type(members));
    CHECK(model.attentions.empty());
    REQUIRE(model.unsupported.size() == 1);
    CHECK(model.unsupported[0].name == "attention");
    CHECK(contains(model.unsupported[0].reason, reason));
}

}  // namespace

TEST_CASE("an unknown type is refused where unread fields name heads, groups, an indexer or sparse attention",
          "[model]") {
    for (const auto& [members, field] : {std::pair{R"("numGhostHeads": 4)", "numGhostHeads is not read"},
                                         {R"("global_attention_heads": [4, 8])", "global_attention_heads"},
                                         {R"("query_groups": 2)", "query_groups"},
                                         {R"("lensing": {"kv_heads_far": 2})", "lensing.kv_heads_far"},
                                         {R"("horizon_blocks": [{"heads": 3}])", "horizon_blocks"},
                                         {R"("indexer_window": 16)", "indexer_window"},
                                         {R"("index_block_rule": 16)", "index_block_rule"},
                                         {R"("use_sparse_attention": true)", "use_sparse_attention"},
                                         {R"("my_sparse_config": {"stride": 2})", "my_sparse_config"}}) {
        check_refused(members, field);
    }
}

TEST_CASE("an unknown type is planned where such fields are off or say nothing of heads", "[model]") {
    for (const char* members :
         {R"("numGhostHeads": 0)", R"("use_sparse_attention": false)", R"("index_map": null)",
          R"("use_head_gate": true)", R"("mtp_num_heads": 2)", R"("n_group": 8)",
          R"("vision_config": {"num_heads": 16})", R"("linear_num_key_heads": 16)"}) {
        INFO(members);
        const Model model = parse_model(of_unknown_type(members));
        CHECK(model.unsupported.empty());
        CHECK(summary(model) == both(kLlama));
    }
}

TEST_CASE("a known type with such a field is planned with a warning", "[model]") {
    const Model model = parse_model(llama_with(R"("numGhostHeads": 4)"));
    CHECK(summary(model) == both(kLlama));
    CHECK(warned(model, WarningKind::unread_field) == std::vector<std::string>{"numGhostHeads"});
}

TEST_CASE("an encoder of an unknown type is refused", "[model]") {
    for (const auto& [members, reason] :
         {std::pair{R"("architectures": ["QuasarForMaskedLM"])", "QuasarForMaskedLM"},
          {R"("architectures": ["QuasarVisionModel"])", "QuasarVisionModel"},
          {R"("architectures": ["QuasarAudioModel"])", "QuasarAudioModel"},
          {R"("architectures": ["QuasarEncoder"])", "QuasarEncoder"},
          {R"("architectures": ["QuasarModel"], "patch_size": 16)", "patch_size"},
          {R"("architectures": ["QuasarModel"], "type_vocab_size": 2)", "type_vocab_size"},
          {R"("architectures": ["QuasarForMaskedLM"], "is_decoder": true)", "QuasarForMaskedLM"},
          {R"("is_decoder": false)", "is_decoder is false"},
          {R"("image_size": 224)", "image_size"}}) {
        check_refused(members, reason);
    }
}

TEST_CASE("a transformer of a diffusers pipeline is refused", "[model]") {
    // The fields that FLUX.1's file has.
    const std::string fields = R"("attention_head_dim": 128, "guidance_embeds": true, "in_channels": 64,
        "joint_attention_dim": 4096, "num_attention_heads": 24, "num_layers": 19, "num_single_layers": 38,
        "patch_size": 1, "pooled_projection_dim": 768})";
    for (const char* member :
         {R"({"_class_name": "FluxTransformer2DModel", )", R"({"_diffusers_version": "0.30.0.dev0", )"}) {
        INFO(member);
        const Model model = parse_model(member + fields);
        CHECK(model.attentions.empty());
        REQUIRE(model.unsupported.size() == 1);
        CHECK(contains(model.unsupported[0].reason, "a part of a diffusers pipeline"));
    }
}

TEST_CASE("the text tower of an unknown type is refused, a decoder of such a name is not", "[model]") {
    const std::string type = R"("model_type": "quasar_text_model", )";
    for (const std::string& config :
         {decoder_with(type, R"("architectures": ["QuasarTextModel"])"),
          R"({"model_type": "quasar", "architectures": ["QuasarModel"], "text_config": )" +
              decoder_with(type, R"("pooling": 1)") + "}"}) {
        INFO(config);
        const Model model = parse_model(config);
        CHECK(model.attentions.empty());
        REQUIRE(model.unsupported.size() == 1);
        CHECK(contains(model.unsupported[0].reason, "its name is a tower's"));
    }
    const Model decoder = parse_model(decoder_with(type, R"("architectures": ["QuasarForCausalLM"])"));
    CHECK(summary(decoder) == both(kLlama));
}

TEST_CASE("a decoder of an unknown type is planned, whatever else its file has", "[model]") {
    for (const char* members :
         {R"("architectures": ["QuasarForCausalLM"], "patch_size": 16)",
          R"("architectures": ["QuasarForConditionalGeneration"], "is_decoder": false)",
          R"("architectures": ["QuasarModel"])", R"("is_decoder": true, "type_vocab_size": 2)",
          R"("architectures": [], "is_decoder": true)"}) {
        INFO(members);
        CHECK(summary(parse_model(of_unknown_type(members))) == both(kLlama));
    }
}
