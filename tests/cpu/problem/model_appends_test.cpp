// What writes the cache of a model: planned where the program says how it is told the places.
#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include "attnsmith/coverage.hpp"
#include "attnsmith/spec.hpp"
#include "expect.hpp"
#include "model_summary.hpp"

using namespace attnsmith;
using namespace attnsmith::test;

namespace {

const ModelOptions kMapping = {.slots = Slots::mapping};

std::vector<ModelAttention> appends_of(const Model& model) {
    std::vector<ModelAttention> appends;
    for (const ModelAttention& attention : model.attentions)
        if (attention.phase == "append") appends.push_back(attention);
    return appends;
}

AttentionSpec append_of(const std::string& config, const ModelOptions& options = kMapping) {
    const auto appends = appends_of(parse_model(config, options));
    REQUIRE(appends.size() == 1);
    CHECK(appends[0].name == "full_attention/append");
    return appends[0].request.spec;
}

std::string refusal_of(const std::string& config) {
    const Model model = parse_model(config, kMapping);
    CHECK(appends_of(model).empty());
    for (const UnsupportedPart& part : model.unsupported)
        if (part.name == "full_attention/append") return part.reason;
    return "";
}

}  // namespace

TEST_CASE("a model's appends are planned where slots are asked for", "[model][append]") {
    const std::string llama = read_file(kModels / "llama-3.1-8b.json");
    CHECK(appends_of(parse_model(llama)).empty());
    const AttentionSpec spec = append_of(llama);
    CHECK(spec.op == Op::append);
    CHECK(spec.slots == Slots::mapping);
    CHECK(spec.rope == Rope::half);
    CHECK(spec.rotary_dim == 128);
    CHECK(spec.q_heads == 32);
    CHECK(spec.kv_heads == 8);
    CHECK(spec.kv == KvStorage::paged);
    CHECK(spec.page_size == 16);
    CHECK_FALSE(spec.q_norm);
    const Model model = parse_model(llama, kMapping);
    CHECK(model.attentions.size() == 3);
    CHECK(model.attentions.back().layers == 32);
    CHECK(model.unsupported.empty());
    for (const ModelAttention& attention : model.attentions)
        if (attention.phase != "append") CHECK(attention.request.spec.op == Op::attention);
}

TEST_CASE("an append stores what the decode reads", "[model][append]") {
    ModelOptions options = kMapping;
    options.slots = Slots::table;
    options.kv_dtype = DType::e4m3, options.kv_scale = KvScale::head;
    options.page_order = PageOrder::HND, options.page_size = 32;
    options.index_dtype = DType::int64;
    options.tensor_parallel = 2;
    const AttentionSpec spec = append_of(read_file(kModels / "llama-3.1-8b.json"), options);
    CHECK(spec.slots == Slots::table);
    CHECK(spec.kv_dtype == DType::e4m3);
    CHECK(spec.kv_scale == KvScale::head);
    CHECK(spec.page_order == PageOrder::HND);
    CHECK(spec.page_size == 32);
    CHECK(spec.index_dtype == DType::int64);
    CHECK(spec.q_heads == 16);
    CHECK(spec.kv_heads == 4);
}

TEST_CASE("norms and rotations are those of the type's code", "[model][append]") {
    const AttentionSpec qwen =
        append_of(of_type("qwen3", R"(, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5)"));
    CHECK(qwen.q_norm);
    CHECK(qwen.k_norm);
    CHECK_FALSE(qwen.v_norm);
    CHECK(qwen.norm_eps == 1e-5);
    CHECK(qwen.rotary_dim == 128);
    const AttentionSpec glm = append_of(of_type("glm4", R"(, "head_dim": 128)"));
    CHECK(glm.rope == Rope::interleaved);
    CHECK(glm.rotary_dim == 64);
    CHECK(append_of(of_type("glm4_moe", R"(, "head_dim": 128, "use_qk_norm": true)")).k_norm);
    CHECK_FALSE(append_of(of_type("glm4_moe", R"(, "head_dim": 128)")).k_norm);
    CHECK(append_of(of_type("glm4_moe", R"(, "head_dim": 128, "use_qk_norm": true)")).norm_eps == 1e-5);
    CHECK(append_of(of_type("phi", R"(, "partial_rotary_factor": 0.25)")).rotary_dim == 16);
    // What rope_scaling says goes before what stands outside of it.
    CHECK(
        append_of(of_type("phi", R"(, "partial_rotary_factor": 0.25, "rope_scaling": {"rope_type": "default",
                              "partial_rotary_factor": 0.5})"))
            .rotary_dim == 32);
    CHECK(append_of(of_type("gptj", R"(, "rotary_dim": 32)")).rotary_dim == 32);
    CHECK(append_of(of_type("bloom")).rope == Rope::none);
    CHECK(append_of(of_type("falcon", R"(, "alibi": true)")).rope == Rope::none);
    CHECK(append_of(of_type("falcon")).rope == Rope::half);
    const auto cohere = appends_of(
        parse_model(of_type("cohere2", R"(, "sliding_window": 64, "sliding_window_pattern": 4)"), kMapping));
    REQUIRE(cohere.size() == 2);
    for (const ModelAttention& append : cohere)
        CHECK(append.request.spec.rope ==
              (append.name == "sliding_attention/append" ? Rope::interleaved : Rope::none));
}

TEST_CASE("an append is refused by the field that says what it does in no way", "[model][append]") {
    for (const auto& [type, members, field] :
         {std::tuple{"phi", R"("qk_layernorm": 1)", "qk_layernorm"},
          {"phi", R"("qk_layernorm": "true")", "qk_layernorm"},
          {"cohere", R"("use_qk_norm": "true")", "use_qk_norm"},
          {"llama", R"("use_qk_norm": 1)", "use_qk_norm"},
          {"llama", R"("partial_rotary_factor": 0.005)", "partial_rotary_factor"},
          {"llama", R"("partial_rotary_factor": 1e20)", "partial_rotary_factor"},
          {"llama", R"("partial_rotary_factor": 1.5)", "partial_rotary_factor"},
          {"gpt_neox", R"("rotary_pct": 0.001)", "rotary_pct"},
          {"llama", R"("rope_scaling": {"partial_rotary_factor": 0.005})",
           "rope_scaling.partial_rotary_factor"}}) {
        INFO(type << " " << members);
        const std::string config = of_type(type, std::string(", ") + members);
        CHECK(refused([&] { (void)parse_model(config, kMapping); }).field() == field);
    }
}

TEST_CASE("what an append assumes, and what the model does before it, is noted", "[model][append]") {
    const auto noted = [](const std::string& config, const std::string& words) {
        const std::vector<ModelAttention> appends = appends_of(parse_model(config, kMapping));
        REQUIRE(appends.size() == 1);
        return std::ranges::any_of(appends[0].notes,
                                   [&](const std::string& note) { return contains(note, words); });
    };
    CHECK(noted(of_type("qwen3", R"(, "num_key_value_heads": 8)"), "no rms_norm_eps"));
    CHECK_FALSE(
        noted(of_type("qwen3", R"(, "num_key_value_heads": 8, "rms_norm_eps": 1e-5)"), "no rms_norm_eps"));
    CHECK_FALSE(noted(of_type("llama"), "no rms_norm_eps"));
    CHECK(noted(of_type("olmo", R"(, "clip_qkv": 8.0)"), "clips q, k and v (clip_qkv)"));
    CHECK_FALSE(noted(of_type("olmo", R"(, "clip_qkv": null)"), "clip_qkv"));
}

TEST_CASE("latents are appended as latents", "[model][append]") {
    const std::string config = read_file(kModels / "deepseek-v3.json");
    const AttentionSpec spec = append_of(config);
    CHECK(spec.head_dim_ckv == 512);
    CHECK(spec.head_dim_kpe == 64);
    CHECK(spec.head_dim_qk == 0);
    CHECK(spec.rope == Rope::interleaved);
    CHECK(spec.rotary_dim == 64);
    CHECK(spec.k_norm);
    CHECK_FALSE(spec.q_norm);
    CHECK(append_of(R"({"rope_interleave": false, )" + config.substr(config.find('{') + 1)).rope ==
          Rope::half);
}

TEST_CASE("what an append of a model is not known to be is said by name", "[model][append]") {
    CHECK(contains(refusal_of(of_type("frobnicator")), "model_type frobnicator"));
    CHECK(contains(refusal_of(untyped_with("")), "a model without a model_type"));
    CHECK(contains(refusal_of(of_type("qwen2_vl")), "M-RoPE"));
    CHECK(contains(refusal_of(of_type("phi", R"(, "qk_layernorm": true)")), "(qk_layernorm)"));
    CHECK(appends_of(parse_model(of_type("bert"), kMapping)).empty());
    ModelOptions ragged = kMapping;
    ragged.kv = KvStorage::ragged;
    const Model model = parse_model(of_type("llama"), ragged);
    REQUIRE(model.unsupported.size() == 1);
    CHECK(model.unsupported[0].name == "full_attention/append");
    CHECK(contains(model.unsupported[0].reason, "dense or paged"));
    ModelOptions strict = kMapping;
    strict.strict = true;
    CHECK_THROWS_AS(parse_model(of_type("qwen2_vl"), strict), Unsupported);
}

TEST_CASE("a model's appends take their options, and attentions nothing of them", "[model][append]") {
    ModelOptions options = kMapping;
    options.rope_table = RopeTable::frequencies, options.q_dtype = DType::e4m3, options.check_slots = true;
    const std::string llama = read_file(kModels / "llama-3.1-8b.json");
    const AttentionSpec spec = append_of(llama, options);
    CHECK(spec.rope_table == RopeTable::frequencies);
    CHECK(spec.rope_factor == 1.0);
    CHECK(spec.q_dtype == DType::e4m3);
    CHECK(spec.check_slots);
    const auto attentions = [&](const ModelOptions& given) {
        std::vector<AttentionSpec> specs;
        for (const ModelAttention& attention : parse_model(llama, given).attentions)
            if (attention.request.spec.op != Op::append) specs.push_back(attention.request.spec);
        return specs;
    };
    CHECK(attentions(options) == attentions({}));
    CHECK(append_of(llama, parse_model_options(R"({"slots": "mapping", "rope_table": "frequencies",
                                                   "q_dtype": "e4m3", "check_slots": true})")) == spec);
    const Coverage coverage = model_coverage(
        llama,
        R"({"slots": "mapping", "rope_table": ["cos_sin", "frequencies"], "check_slots": [false, true]})");
    CHECK(std::ranges::count(coverage.attentions, Op::append,
                             [](const ModelAttention& attention) { return attention.request.spec.op; }) == 4);
}

TEST_CASE("options of appends are refused where no appends are asked for", "[model][append]") {
    const std::string llama = read_file(kModels / "llama-3.1-8b.json");
    const auto field = [&](const ModelOptions& options) {
        return refused([&] { (void)parse_model(llama, options); }).field();
    };
    CHECK(field({.rope_table = RopeTable::frequencies}) == "rope_table");
    CHECK(field({.q_dtype = DType::e4m3}) == "q_dtype");
    CHECK(field({.check_slots = true}) == "check_slots");
    CHECK_NOTHROW(parse_model(llama, {.check_slots = false}));
}

TEST_CASE("slots may be several, and the attentions are there once", "[model][append]") {
    const Coverage coverage =
        model_coverage(read_file(kModels / "llama-3.1-8b.json"), R"({"slots": ["mapping", "table"]})");
    CHECK(coverage.attentions.size() == 4);
    CHECK(std::ranges::count_if(coverage.attentions, [](const ModelAttention& attention) {
              return attention.phase == "append";
          }) == 2);
}

TEST_CASE("a model's latents may have scales of blocks, which appends write", "[model][append]") {
    ModelOptions options;
    options.slots = Slots::mapping;
    options.kv_dtype = DType::e4m3, options.kv_scale = KvScale::block128;
    const Model model = parse_model(read_file(kModels / "deepseek-v3.json"), options);
    std::set<Op> ops;
    for (const ModelAttention& attention : model.attentions) {
        const AttentionSpec& spec = attention.request.spec;
        // A prefill that does not absorb the latents has keys of 16 bits.
        CHECK(spec.kv_scale == (spec.op == Op::attention ? KvScale::none : KvScale::block128));
        ops.insert(spec.op);
    }
    CHECK(ops.contains(Op::mla));
    CHECK(ops.contains(Op::append));
    CHECK(model.unsupported.empty());
}
