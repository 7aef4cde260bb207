// Words with several values: which combinations there are, what each is called, and what is left out.
#include "attnsmith/coverage.hpp"

#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "problem/expect.hpp"
#include "problem/model_summary.hpp"
#include "problem/request/request_fields.hpp"

using namespace attnsmith;
using test::contains;
using test::refused;

namespace {

constexpr const char* kModel =
    R"({"model_type": "mistral", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 2, "sliding_window": 64, "torch_dtype": "bfloat16"})";

Coverage of(const std::string& words) {
    return request_coverage(R"({"head_dim": 64, "q_heads": 8)" + words + "}");
}

std::vector<std::string> names(const Coverage& coverage) {
    std::vector<std::string> names;
    for (const ModelAttention& attention : coverage.attentions) names.push_back(attention.name);
    return names;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("A request without lists is one attention without a name") {
    const Coverage coverage = of(R"(, "kv": "paged", "page_size": 16, "sm": [80, 90])");
    REQUIRE(coverage.attentions.size() == 1);
    CHECK(coverage.attentions[0].name.empty());
    CHECK(coverage.attentions[0].request ==
          parse_request(R"({"head_dim": 64, "q_heads": 8, "kv": "paged", "page_size": 16, "sm": [80, 90]})"));
    CHECK((coverage.skipped.empty() && coverage.unsupported.empty()));
}

TEST_CASE("Lists are all their combinations, each named by what is its own") {
    const Coverage coverage =
        of(R"(, "kv": ["dense", "ragged"], "alignment": [16, 8], "lse": [false, true], "dtype": ["fp16"])");
    CHECK(names(coverage) ==
          Names{"attention (lse off, kv dense, alignment 16)", "attention (lse off, kv dense, alignment 8)",
                "attention (lse off, kv ragged, alignment 16)", "attention (lse off, kv ragged, alignment 8)",
                "attention (lse on, kv dense, alignment 16)", "attention (lse on, kv dense, alignment 8)",
                "attention (lse on, kv ragged, alignment 16)", "attention (lse on, kv ragged, alignment 8)"});
    CHECK(coverage.specs().size() == 8);
    for (const ModelAttention& attention : coverage.attentions) {
        const AttentionSpec& spec = attention.request.spec;
        CHECK(spec.dtype == DType::fp16);
        CHECK(contains(attention.name, spec.lse ? "lse on" : "lse off"));
        CHECK(contains(attention.name, spec.kv == KvStorage::dense ? "kv dense" : "kv ragged"));
        CHECK(contains(attention.name, "alignment " + std::to_string(spec.alignment) + ")"));
    }
}

TEST_CASE("A value that stands twice is one, and so are values that mean the same") {
    CHECK(of(R"(, "kv": ["dense", "dense"])").attentions.size() == 1);
    CHECK(of(R"(, "dtype": ["bf16", "bfloat16"])").attentions.size() == 1);
}

TEST_CASE("Pages of KV that has none are skipped by name, and are one attention") {
    const Coverage coverage =
        of(R"(, "kv": ["paged", "dense", "ragged"], "page_size": [16, 64], "page_order": ["NHD", "HND"])");
    CHECK(names(coverage) == Names{"attention (kv paged, page_order NHD, page_size 16)",
                                   "attention (kv paged, page_order NHD, page_size 64)",
                                   "attention (kv paged, page_order HND, page_size 16)",
                                   "attention (kv paged, page_order HND, page_size 64)",
                                   "attention (kv dense)", "attention (kv ragged)"});
    const std::string reason = "only paged KV has pages";
    CHECK(coverage.skipped == std::vector<SkippedPart>{{"page_order with kv dense", reason},
                                                       {"page_order with kv ragged", reason},
                                                       {"page_size with kv dense", reason},
                                                       {"page_size with kv ragged", reason}});
}

TEST_CASE("Types of o that do not go with one of q are skipped by name") {
    const Coverage coverage = of(R"(, "dtype": ["bf16", "fp16"], "o_dtype": ["bf16", "float16", "fp32"])");
    CHECK(names(coverage) ==
          Names{"attention (dtype bf16, o_dtype bf16)", "attention (dtype bf16, o_dtype fp32)",
                "attention (dtype fp16, o_dtype fp16)", "attention (dtype fp16, o_dtype fp32)"});
    const std::string reason = "o has the type of q, k and v, or fp32";
    CHECK(coverage.skipped == std::vector<SkippedPart>{{"o_dtype fp16 with dtype bf16", reason},
                                                       {"o_dtype bf16 with dtype fp16", reason}});
    CHECK(of(R"(, "dtype": ["bf16", "fp16"], "o_dtype": "bf16")").attentions.size() == 1);
    // Where nothing is left, that is a mistake.
    for (const char* const words : {R"(, "dtype": "bf16", "o_dtype": "fp16")",
                                    R"(, "dtype": "bf16", "o_dtype": ["fp16"], "kv": ["dense", "ragged"])",
                                    R"(, "o_dtype": ["bf16", "fp16"])"}) {
        INFO(words);
        CHECK(refused([&] { of(words); }).field() == "o_dtype");
    }
    CHECK(refused([] { of(R"(, "dtype": ["bf16", "fp17"], "o_dtype": ["bf16"])"); }).field() == "dtype");
}

TEST_CASE("Scales of keys and values of 16 bits are skipped by name") {
    const Coverage coverage =
        of(R"(, "kv_dtype": ["bf16", "e4m3"], "kv_scale": ["none", "token_head"], "dtype": "bf16")");
    CHECK(names(coverage) == Names{"attention (kv_dtype bf16, kv_scale none)",
                                   "attention (kv_dtype e4m3, kv_scale none)",
                                   "attention (kv_dtype e4m3, kv_scale token_head)"});
    CHECK(coverage.skipped == std::vector<SkippedPart>{
                                  {"kv_scale token_head with kv_dtype bf16", "scales are of e4m3 and e5m2"}});
    CHECK(refused([] { of(R"(, "kv_dtype": "bf16", "kv_scale": ["head"], "dtype": "bf16")"); }).field() ==
          "kv_scale");
}

TEST_CASE("Types of o reach a model's attentions, of whatever type it is") {
    const char* const config =
        R"({"model_type": "mistral", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
            "num_key_value_heads": 2, "torch_dtype": "float16"})";
    const Coverage coverage = model_coverage(config, R"({"o_dtype": ["fp16", "fp32"]})");
    std::set<std::optional<DType>> outputs;
    for (const AttentionSpec& spec : coverage.specs()) outputs.insert(spec.o_dtype);
    CHECK(outputs == std::set<std::optional<DType>>{DType::fp16, DType::fp32});
    CHECK(refused([&] { (void)model_coverage(config, R"({"o_dtype": ["bf16", "fp32"]})"); }).field() ==
          "o_dtype");
}

TEST_CASE("Pages where no KV has any are a mistake") {
    CHECK(refused([] { of(R"(, "page_size": 16)"); }).field() == "page_size");
    CHECK(refused([] { of(R"(, "page_size": [16, 64])"); }).field() == "page_size");
    CHECK(refused([] { of(R"(, "kv": ["dense", "ragged"], "page_size": 16)"); }).field() == "page_size");
    CHECK(refused([] {
              (void)request_coverage(
                  R"({"op": "merge", "head_dim": 64, "q_heads": 8, "kv": ["paged", "dense"]})");
          }).field() == "kv");
}

TEST_CASE("A suffix of sm that says nothing is a warning") {
    CHECK(of(R"(, "sm": ["90", "90a", 80])").warnings.empty());
    CHECK(of(R"(, "sm": "native")").warnings.empty());
    const std::vector<ModelWarning> warnings = of(R"(, "sm": ["90", "sm_100f"])").warnings;
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0].kind == WarningKind::ignored);
    CHECK(warnings[0].field == "sm");
    CHECK(contains(warnings[0].text, "sm_100f"));
    CHECK(to_string(warnings[0].kind) == "ignored");
    CHECK(refused([] { of(R"(, "sm": "90x90")"); }).field() == "sm");
}

TEST_CASE("Lists that are wrong are named") {
    CHECK(refused([] { of(R"(, "kv": [])"); }).field() == "kv");
    CHECK(refused([] { of(R"(, "page_size": [])"); }).field() == "page_size");
    CHECK(refused([] { of(R"(, "kv": ["dense", "sparse"])"); }).field() == "kv");
    CHECK(refused([] { of(R"(, "alignment": [16, 3])"); }).field() == "alignment");
    CHECK(refused([] { of(R"(, "kv": ["paged", "dense"])"); }).field() == "page_size");  // which pages need
    CHECK(refused([] { of(R"(, "kv": [["dense"]])"); }).field() == "kv");
    // Not for the program to choose.
    CHECK(refused([] { of(R"(, "mask": ["full", "causal"])"); }).field() == "mask");
    CHECK(refused([] { (void)request_coverage(R"({"head_dim": [64, 128], "q_heads": 8})"); }).field() ==
          "head_dim");
    CHECK(refused([] { (void)model_coverage(kModel, R"({"batch": [1, 2]})"); }).field() == "batch");
    CHECK(refused([] { (void)model_coverage(kModel, R"({"kw": ["dense"]})"); }).field() == "kw");
    std::string pages = "1";
    for (int size = 2; size < 1100; ++size) pages += "," + std::to_string(size);
    CHECK(
        refused([&] {
            of(R"(, "kv": "paged", "lse": [false, true], "index_dtype": ["int32", "int64"], "page_order": ["NHD", "HND"], "page_size": [)" +
               pages + "]");
        }).field() == "page_size");
}

TEST_CASE("A model's attentions are there for each combination") {
    const Coverage one = model_coverage(kModel);
    REQUIRE(one.attentions.size() == 2);
    CHECK(names(one) == Names{"sliding_attention/prefill", "sliding_attention/decode"});
    const Coverage coverage = model_coverage(
        kModel,
        R"({"kv": ["paged", "dense"], "page_size": [16, 64], "index_dtype": ["int32", "int64"], "batch": 3})");
    CHECK(coverage.attentions.size() == 2 * (2 + 1) * 2);
    std::set<std::string> distinct;
    for (const ModelAttention& attention : coverage.attentions) {
        distinct.insert(attention.name);
        CHECK(attention.request.sizes.batch == 3);
        CHECK(attention.layers == 2);
        CHECK(contains(attention.name, "sliding_attention/" + attention.phase + " (kv "));
    }
    CHECK(distinct.size() == coverage.attentions.size());
    // Phases share their specs.
    CHECK(coverage.specs().size() == coverage.attentions.size() / 2);
    CHECK(coverage.skipped ==
          std::vector<SkippedPart>{{"page_size with kv dense", "only paged KV has pages"}});
}

TEST_CASE("Options as structs are named by what each of them has and others have not") {
    const std::vector<ModelOptions> variants = {{.kv = KvStorage::paged, .lse = true},
                                                {.kv = KvStorage::dense, .page_size = 0, .lse = true}};
    const Coverage coverage = model_coverage(kModel, variants);
    CHECK(names(coverage) == Names{"sliding_attention/prefill (kv paged, page_size 16)",
                                   "sliding_attention/decode (kv paged, page_size 16)",
                                   "sliding_attention/prefill (kv dense, page_size 0)",
                                   "sliding_attention/decode (kv dense, page_size 0)"});
    CHECK(coverage.specs() == model_coverage(kModel, R"({"kv": ["paged", "dense"], "lse": true})").specs());
    CHECK(names(model_coverage(kModel, std::vector<ModelOptions>(2))) == names(model_coverage(kModel)));
    CHECK(refused([&] { (void)model_coverage(kModel, std::vector<ModelOptions>()); }).field() == "variants");
}

TEST_CASE("Requests are a coverage, each once, named by their places") {
    AttentionRequest request = parse_request(R"({"head_dim": 64, "q_heads": 8})"), other = request;
    CHECK(names(coverage_of({request})) == Names{"attention"});
    other.spec.lse = true;
    AttentionRequest unbuilt = request;
    unbuilt.spec.head_dim_qk = unbuilt.spec.head_dim_vo = 63;
    const Coverage coverage = coverage_of({request, other, request, unbuilt});
    CHECK(names(coverage) == Names{"attention 0", "attention 1"});
    CHECK(coverage.specs() == std::vector{request.spec, other.spec});
    REQUIRE(coverage.unsupported.size() == 1);
    CHECK(coverage.unsupported[0].name == "attention 3");
    other.spec.q_heads = -1;
    CHECK(refused([&] { (void)coverage_of({request, other}); }).field() == "requests[1].q_heads");
    AttentionRequest nowhere = request;
    nowhere.sm = {90, 91};
    CHECK(refused([&] { (void)coverage_of({request, nowhere}); }).field() == "requests[1].sm");
}

TEST_CASE("The headers list the words that may be several") {
    std::string choices;
    for (const problem::RequestField& field : problem::request_fields()) {
        if (field.role != problem::FieldRole::choice) continue;
        choices += (choices.empty() ? "" : ", ") + std::string(field.name);
    }
    for (const char* header : {"coverage.hpp", "attnsmith.h"}) {
        INFO(header);
        std::string text =
            test::read_file(std::string(ATTNSMITH_SOURCE_DIR) + "/runtime/include/attnsmith/" + header);
        text = std::regex_replace(text, std::regex(R"(\s*\n *(//|\*) *)"), " ");
        CHECK(contains(text, "(" + choices + ")"));
    }
}

TEST_CASE("A part that no combination has is listed once") {
    const Coverage coverage = model_coverage(
        R"({"model_type": "deepseek_v3", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
            "kv_lora_rank": 72, "qk_rope_head_dim": 64, "qk_nope_head_dim": 64, "v_head_dim": 64,
            "torch_dtype": "bfloat16"})",
        R"({"index_dtype": ["int32", "int64"]})");
    REQUIRE(coverage.unsupported.size() == 1);
    CHECK(coverage.unsupported[0].name == "full_attention/decode");
    CHECK(coverage.attentions.size() == 2);
}

TEST_CASE("What is added twice is there once, under its first name") {
    Coverage all;
    all.add(model_coverage(kModel), "a/");
    all.add(model_coverage(kModel), "b/");
    all.add(model_coverage(kModel), "a/");
    CHECK(names(all) == Names{"a/sliding_attention/prefill", "a/sliding_attention/decode",
                              "b/sliding_attention/prefill", "b/sliding_attention/decode"});
    CHECK(all.specs().size() == 1);
    Coverage skipping;
    skipping.add(model_coverage(kModel, R"({"kv": "dense", "page_size": 16})"), "a/");
    CHECK(skipping.skipped ==
          std::vector<SkippedPart>{{"a/page_size with kv dense", "only paged KV has pages"}});
}

TEST_CASE("A coverage as JSON has requests that can be parsed") {
    const Coverage coverage = model_coverage(kModel, R"({"kv": ["paged", "dense"], "page_size": 16})");
    const auto json = nlohmann::json::parse(to_json(coverage));
    REQUIRE(json["attentions"].size() == coverage.attentions.size());
    for (std::size_t i = 0; i < coverage.attentions.size(); ++i) {
        CHECK(parse_request(json["attentions"][i]["request"].dump()) == coverage.attentions[i].request);
        CHECK(json["attentions"][i]["name"] == coverage.attentions[i].name);
    }
    CHECK(json["skipped"] ==
          nlohmann::json::parse(
              R"([{"name": "page_size with kv dense", "reason": "only paged KV has pages"}])"));
    CHECK((json["unsupported"].empty() && !json.contains("model_type")));
}
