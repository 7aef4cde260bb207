// Layers that read the keys and values of an earlier one: planned as the others of their kind, and said.
#include <string>

#include "attnsmith/error.hpp"
#include "attnsmith/spec.hpp"
#include "expect.hpp"
#include "model_summary.hpp"

using namespace attnsmith;
using namespace attnsmith::test;

namespace {

constexpr const char* kNone = "num_kv_shared_layers: ";

// Every fourth of 12 layers sees all.
std::string gemma4(const std::string& members) {
    return of_type("gemma4_text", R"(, "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512,
        "sliding_window": 512, "layer_types": ["sliding_attention",
        "sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
        "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "sliding_attention",
        "full_attention"], "torch_dtype": "bfloat16")" +
                                      members);
}

std::string shared_note(const Model& model, const std::string& name) {
    for (const ModelAttention& attention : model.attentions) {
        if (attention.name != name) continue;
        for (const std::string& note : attention.notes)
            if (note.starts_with(kNone)) return note.substr(std::string(kNone).size());
    }
    return "";
}

InvalidRequest error_of(const std::string& config) {
    return refused([&] { (void)parse_model(config); });
}

}  // namespace

TEST_CASE("layers that read another layer's cache have the attention of their kind", "[model]") {
    const std::vector<Attention> kPlanned = both({"sliding_attention", 9, 16, 4, 256, 256, 1.0, 511},
                                                 {"full_attention", 3, 16, 4, 512, 512, 1.0});
    for (int shared = 0; shared <= 12; ++shared) {
        INFO(shared);
        const std::string config = gemma4(R"(, "num_kv_shared_layers": )" + std::to_string(shared));
        if (shared == 9 || shared == 10 || shared == 11) {  // there is no layer left that sees all
            CHECK(error_of(config).field() == "num_kv_shared_layers");
            CHECK(contains(error_of(config).what(), "full_attention"));
            continue;
        }
        const Model model = parse_model(config);
        CHECK(summary(model) == kPlanned);
        CHECK(model.unsupported.empty());
        CHECK(model.warnings.empty());
    }
}

TEST_CASE("a note says whose cache layers read: the last of their type before all that share", "[model]") {
    const Model model = parse_model(gemma4(R"(, "num_kv_shared_layers": 5)"));
    for (const char* phase : {"/prefill", "/decode"}) {
        // Layers 7 to 11 share, of which 7 and 11 see all; 6 and 3 are the last before them.
        CHECK(contains(
            shared_note(model, std::string("sliding_attention") + phase),
            "the 3 of these layers from layer 8 on (counted from 0) have no keys and values of their "
            "own: give them the cache of layer 6,"));
        CHECK(contains(
            shared_note(model, std::string("full_attention") + phase),
            "the 2 of these layers from layer 7 on (counted from 0) have no keys and values of their "
            "own: give them the cache of layer 3,"));
    }
    // One that sees all is the only one that shares.
    const Model last = parse_model(gemma4(R"(, "num_kv_shared_layers": 1)"));
    CHECK(shared_note(last, "sliding_attention/decode").empty());
    CHECK(contains(shared_note(last, "full_attention/decode"), "layer 11 of these (counted from 0) has"));
    CHECK(contains(shared_note(last, "full_attention/decode"), "the cache of layer 7,"));
    CHECK_FALSE(has_note(parse_model(gemma4("")), kNone));
    CHECK_FALSE(has_note(parse_model(gemma4(R"(, "num_kv_shared_layers": 0)")), kNone));
    // Where all share, the keys and values come from another model.
    CHECK(has_note(parse_model(gemma4(R"(, "num_kv_shared_layers": 12)")), "no layer has keys and values"));
}

TEST_CASE("Gemma 3n shares as its class does where the file leaves it out", "[model]") {
    const auto gemma3n = [](int layers, const std::string& members) {
        return R"({"model_type": "gemma3n_text", "hidden_size": 2048, "num_attention_heads": 8,
            "num_hidden_layers": )" +
               std::to_string(layers) + members + "}";
    };
    const Model model = parse_model(gemma3n(35, ""));
    CHECK(summary(model) == both({"sliding_attention", 28, 8, 2, 256, 256, 1.0, 511},
                                 {"full_attention", 7, 8, 2, 256, 256, 1.0}));
    CHECK(has_note(model, "num_kv_shared_layers is not given: 15 is the default of gemma3n_text"));
    CHECK(
        contains(shared_note(model, "sliding_attention/decode"), "the 12 of these layers from layer 20 on"));
    CHECK(contains(shared_note(model, "sliding_attention/decode"), "the cache of layer 18,"));
    CHECK(contains(shared_note(model, "full_attention/decode"), "the cache of layer 19,"));
    // A model with no more layers than that has none to share with.
    CHECK(has_note(parse_model(gemma3n(15, "")), "none of as few as 15 layers shares"));
    CHECK(contains(error_of(gemma3n(16, "")).what(), "15, the default of gemma3n_text,"));
    // In its class no layer shares where none comes before those that are to.
    const Model all = parse_model(gemma3n(30, R"(, "num_kv_shared_layers": 30)"));
    CHECK(has_note(all, "no layer shares where all are to"));
    CHECK_FALSE(has_note(all, "no layer has keys and values"));
}

TEST_CASE("a number of layers that share is one of the model's layers", "[model]") {
    for (const char* wrong : {"13", "-1", "1.5", "\"4\"", "true"}) {
        INFO(wrong);
        CHECK(error_of(gemma4(R"(, "num_kv_shared_layers": )" + std::string(wrong))).field() ==
              "num_kv_shared_layers");
    }
    // Other types' code does not share by it.
    CHECK(warned(parse_model(llama_with(R"("num_kv_shared_layers": 4)")), WarningKind::unread_field) ==
          std::vector<std::string>{"num_kv_shared_layers"});
}

TEST_CASE("layers that read another layer's cache have its heads", "[model]") {
    const auto of = [](const std::string& overrides) {
        return gemma4(R"(, "num_kv_shared_layers": 4, "per_layer_config": )" + overrides);
    };
    // As newer files have what sees all: layer 11 reads layer 7.
    const Model model = parse_model(of(R"({"3": {"head_dim": 512, "num_key_value_heads": 2},
        "7": {"head_dim": 512, "num_key_value_heads": 2}, "11": {"head_dim": 512, "num_key_value_heads": 2}})"));
    CHECK(summary(model) == both({"sliding_attention", 9, 16, 4, 256, 256, 1.0, 511},
                                 {"full_attention", 3, 16, 2, 512, 512, 1.0}));
    CHECK(contains(shared_note(model, "full_attention/decode"), "the cache of layer 7,"));
    // Layer 3 alone may differ: nothing reads it.
    const Model third = parse_model(of(R"({"3": {"head_dim": 128}})"));
    CHECK(third.attentions.size() == 6);
    CHECK(contains(shared_note(third, "full_attention/decode"), "the cache of layer 7,"));
    CHECK(shared_note(third, "full_attention_d128/decode").empty());
    for (const char* overrides : {R"({"11": {"head_dim": 512}})", R"({"7": {"num_key_value_heads": 2}})"}) {
        INFO(overrides);
        const InvalidRequest error = error_of(of(overrides));
        CHECK(error.field() == "per_layer_config");
        CHECK(contains(error.what(), "layer 11"));
        CHECK(contains(error.what(), "layer 7, whose keys and values it reads"));
    }
}
