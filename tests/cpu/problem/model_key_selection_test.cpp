// Models whose indexer selects the keys that a query sees: dense attention while it selects all of them, and
// refused by name with more keys.
#include <string>

#include "attnsmith/coverage.hpp"
#include "attnsmith/error.hpp"
#include "attnsmith/spec.hpp"
#include "expect.hpp"
#include "model_summary.hpp"

using namespace attnsmith;
using namespace attnsmith::test;

namespace {

std::string latent_of(const std::string& type, const std::string& members) {
    return of_type(type, R"(, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "torch_dtype": "bfloat16")" +
                             members);
}

Model planned_for(const std::string& config, std::int64_t kv_len) {
    ModelOptions options;
    options.kv_len = kv_len;
    return parse_model(config, options);
}

const std::vector<Attention> kLatent = {{"full_attention/prefill", 12, 16, 16, 192, 128, rsqrt(192)},
                                        {"full_attention/decode", 12, 16, 1, 576, 512, rsqrt(192)}};

constexpr const char* kCondition = "right only while a sequence has at most 1000 keys";

}  // namespace

TEST_CASE("while an indexer selects all keys its model is planned as dense attention", "[model]") {
    for (const char* type : {"deepseek_v3", "deepseek_v32", "glm_moe_dsa"}) {
        INFO(type);
        const std::string config = latent_of(type, R"(, "index_topk": 1000, "index_n_heads": 64)");
        for (const std::int64_t kv_len : {1, 999, 1000}) {
            const Model model = planned_for(config, kv_len);
            CHECK(summary(model) == kLatent);
            CHECK(model.unsupported.empty());
            CHECK(has_note(model, kCondition));
            // Whoever builds the kernels without a look at plans reads the warning.
            REQUIRE(model.warnings.size() == 1);
            CHECK(model.warnings[0].kind == WarningKind::approximated);
            CHECK(model.warnings[0].field == "index_topk");
            CHECK(contains(model.warnings[0].text, kCondition));
        }
    }
}

TEST_CASE("with more keys than an indexer selects its model is refused by the field", "[model]") {
    for (const char* type : {"deepseek_v3", "deepseek_v32", "glm_moe_dsa"}) {
        INFO(type);
        const Model model =
            planned_for(latent_of(type, R"(, "index_topk": 1000, "index_n_heads": 64)"), 1001);
        CHECK(model.attentions.empty());
        CHECK(model.warnings.empty());
        REQUIRE(model.unsupported.size() == 1);
        CHECK(model.unsupported[0].name == "full_attention");
        for (const char* part :
             {"an indexer selects", "index_topk is 1000", "kv_len 1001", "kv_len of up to 1000"})
            CHECK(contains(model.unsupported[0].reason, part));
    }
    // The field by its whole name, and the length that is planned where nothing else is said.
    const Model inner = parse_model(R"({"model_type": "kimi_vl", "text_config": )" +
                                    latent_of("deepseek_v3", R"(, "index_topk": 2048)") + "}");
    REQUIRE(inner.unsupported.size() == 1);
    CHECK(contains(inner.unsupported[0].reason, "text_config.index_topk is 2048, and kv_len 4096"));
}

TEST_CASE("an indexer's size is its class's where the file leaves it out", "[model]") {
    for (const char* type : {"deepseek_v32", "glm_moe_dsa"}) {
        INFO(type);
        const Model model = planned_for(latent_of(type, ""), 2048);
        CHECK(summary(model) == kLatent);
        CHECK(has_note(model, "index_topk is not given: 2048 is the default of " + std::string(type)));
        CHECK(has_note(model, "at most 2048 keys"));
        CHECK(planned_for(latent_of(type, ""), 2049).unsupported.size() == 1);
        for (const char* wrong : {"null", "0", "false", "-1"}) {
            INFO(wrong);
            const auto error = refused(
                [&] { (void)parse_model(latent_of(type, R"(, "index_topk": )" + std::string(wrong))); });
            CHECK(error.field() == "index_topk");
        }
    }
    // DeepSeek-V3 has none of its own, and is planned at any length.
    for (const char* members : {"", R"(, "index_topk": null)", R"(, "index_topk": 0)"}) {
        const Model model = planned_for(latent_of("deepseek_v3", members), 100000);
        CHECK(summary(model) == kLatent);
        CHECK(model.warnings.empty());
        CHECK_FALSE(has_note(model, "index_topk"));
    }
}

TEST_CASE("what layers share of an indexer's selection is no doubt, another indexer is", "[model]") {
    const auto glm = [](const std::string& members) {
        return planned_for(latent_of("glm_moe_dsa", R"(, "index_topk": 1000)" + members), 1000);
    };
    for (const char* members :
         {R"(, "index_topk_freq": 4, "index_skip_topk_offset": 3, "index_share_for_mtp_iteration": true)",
          R"(, "index_topk_pattern": "FFSSSFSSSFSS", "indexer_rope_interleave": true)",
          R"(, "indexer_types": ["full", "full", "full", "full", "full", "full", "shared", "shared", "shared",
              "shared", "shared", "shared"])",
          R"(, "layer_types": ["indexed_attention", "indexed_attention"])",
          R"(, "layer_types": ["deepseek_sparse_attention"])"}) {
        INFO(members);
        CHECK(summary(glm(members)) == kLatent);
        CHECK(glm(members).warnings.size() == 1);
    }
    CHECK(glm(R"(, "indexer_window": 64)").warnings.size() == 2);
    CHECK(glm(R"(, "layer_types": ["indexed_attention", "linear_attention"])").warnings.size() == 2);
    for (const char* members : {R"(, "index_kpool": 16)", R"(, "index_topk_blocks": 16)"}) {
        INFO(members);
        CHECK(glm(members).attentions.empty());
        REQUIRE(glm(members).unsupported.size() == 1);
        CHECK(glm(members).unsupported[0].name == "attention");
    }
    // What the indexer of any other type selects is not known, however few the keys are.
    for (const char* type : {"llama", "kimi_k2", "deepseek_v4"}) {
        INFO(type);
        const Model model = planned_for(latent_of(type, R"(, "index_topk": 2048)"), 16);
        CHECK(model.attentions.empty());
        REQUIRE(model.unsupported.size() == 1);
        CHECK(contains(model.unsupported[0].reason, "index_topk"));
    }
}

TEST_CASE("strict refuses dense attention in place of an indexer's selection", "[model]") {
    ModelOptions options;
    options.strict = true;
    for (const std::int64_t kv_len : {1000, 1001}) {
        options.kv_len = kv_len;
        CHECK_THROWS_AS(parse_model(latent_of("deepseek_v32", R"(, "index_topk": 1000)"), options),
                        Unsupported);
    }
}

TEST_CASE("kernels of a model with an indexer are listed with the condition", "[model]") {
    const std::string config = latent_of("deepseek_v32", R"(, "index_topk": 1000)");
    const Coverage refused = model_coverage(config);
    CHECK(refused.specs().empty());
    CHECK(refused.unsupported.size() == 1);
    const Coverage listed = model_coverage(config, R"({"kv_len": 1000, "kv": ["paged", "dense"]})");
    CHECK(listed.specs().size() == 4);
    REQUIRE(listed.warnings.size() == 1);
    CHECK(contains(listed.warnings[0].text, kCondition));
}
