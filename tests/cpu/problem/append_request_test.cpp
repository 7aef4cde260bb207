// Requests of op append: which fields count, in which of its two forms, and what the others are refused with.
#include <fmt/format.h>

#include <functional>
#include <string>
#include <utility>

#include "append_words.hpp"
#include "attnsmith/spec.hpp"
#include "expect.hpp"
#include "problem/request/problem.hpp"
#include "problem/request/recorded.hpp"
#include "problem/request/request_fields.hpp"

using namespace attnsmith;
using namespace attnsmith::problem;
using attnsmith::test::append_words;
using attnsmith::test::contains;
using attnsmith::test::refused;

namespace {

AttentionSpec append() { return {.op = Op::append, .head_dim_qk = 128, .q_heads = 32, .kv_heads = 8}; }
AttentionSpec latents() {
    return {.op = Op::append, .head_dim_ckv = 512, .head_dim_kpe = 64, .q_heads = 128};
}

using Change = std::function<void(AttentionSpec&)>;

}  // namespace

TEST_CASE("an append request is read and written", "[append][request]") {
    const std::string whole =
        R"({"op":"append","dtype":"bf16","head_dim_qk":192,"head_dim_vo":128,"q_heads":32,"kv_heads":8,)"
        R"("kv":"paged","page_order":"HND","page_size":16,"index_dtype":"int64","alignment":8,"kv_dtype":"e4m3",)"
        R"("kv_scale":"head","slots":"table","rope":"interleaved","rotary_dim":64,"rope_table":"frequencies",)"
        R"("rope_factor":1.5,"q_norm":true,"k_norm":true,"v_norm":true,"norm_eps":1e-05,"q_dtype":"e5m2",)"
        R"("check_slots":false,"batch":2,"q_len":7,"kv_len":9,"sm":[80,90]})";
    const AttentionRequest request = parse_request(whole);
    CHECK(request.spec.rope == Rope::interleaved);
    CHECK(request.spec.norm_eps == 1e-5);
    CHECK(request.spec.q_dtype == DType::e5m2);
    CHECK(to_json(request) == whole);
    const AttentionRequest given =
        parse_request(R"({"op": "append", "head_dim": 64, "q_heads": 4, "rope": "neox"})");
    CHECK(given.spec.slots == Slots::mapping);
    CHECK(given.spec.rope == Rope::half);
    CHECK(given.spec.rotary_dim == 64);
    CHECK(given.spec.kv_heads == 4);
    CHECK(parse_request(to_json(given)) == given);
}

TEST_CASE("an append of latents has no head dims", "[append][request]") {
    const AttentionRequest request = parse_request(
        R"({"op": "append", "head_dim_ckv": 512, "head_dim_kpe": 64, "q_heads": 128, "rope": "interleaved", "k_norm": true})");
    CHECK(request.spec.rotary_dim == 64);
    CHECK(request.spec.kv_heads == 1);
    const std::string json = to_json(request);
    CHECK(contains(json, R"("head_dim_ckv":512)"));
    CHECK_FALSE(contains(json, "head_dim_qk"));
    CHECK_FALSE(contains(json, "v_norm"));
    CHECK(parse_request(json) == request);
    CHECK_FALSE(contains(to_json({validate(append(), {}).spec, {}, {}}), "head_dim_ckv"));
}

TEST_CASE("an append's flags give the same request", "[append][request]") {
    AttentionSpec spec = append();
    spec.rope = Rope::half;
    spec.k_norm = true;
    CHECK(request_flags(validate(spec, {})) ==
          "--head-dim 128 --op append --q-heads 32 --kv-heads 8 --rope half --rotary-dim 128 --k-norm "
          "--norm-eps 1e-06");
    CHECK(request_flags(validate(latents(), {})) ==
          "--op append --head-dim-ckv 512 --head-dim-kpe 64 --q-heads 128");
}

TEST_CASE("what an append fills in", "[append][validate]") {
    AttentionSpec spec = append();
    spec.rope = Rope::half, spec.rope_table = RopeTable::frequencies, spec.q_norm = true;
    const AttentionSpec filled = validate(spec, {}).spec;
    CHECK(filled.head_dim_vo == 128);
    CHECK(filled.rotary_dim == 128);
    CHECK(filled.rope_factor == 1.0);
    CHECK(filled.norm_eps == 1e-6);
    CHECK(filled.kv_dtype == DType::bf16);
    CHECK(filled.q_dtype == DType::bf16);
    CHECK(validate(filled, {}).spec == filled);
    CHECK_FALSE(filled.scale.has_value());
    // Any norm has an eps.
    for (bool AttentionSpec::*const norm :
         {&AttentionSpec::q_norm, &AttentionSpec::k_norm, &AttentionSpec::v_norm}) {
        AttentionSpec normed = append();
        normed.*norm = true;
        CHECK(validate(normed, {}).spec.norm_eps == 1e-6);
        normed.norm_eps = 1e-5;
        CHECK(validate(normed, {}).spec.norm_eps == 1e-5);
        normed.norm_eps = 0.0;
        CHECK(refused([&] { validate(normed, {}); }).field() == "norm_eps");
    }
}

TEST_CASE("what does not count for an append is refused by name", "[append][validate]") {
    const std::pair<const char*, Change> cases[] = {
        {"mask", [](AttentionSpec& s) { s.mask = Mask::causal; }},
        {"window_left", [](AttentionSpec& s) { s.window_left = 0; }},
        {"window_right", [](AttentionSpec& s) { s.window_right = 5; }},
        {"attention_chunk", [](AttentionSpec& s) { s.attention_chunk = 64; }},
        {"causal_block", [](AttentionSpec& s) { s.causal_block = 64; }},
        {"scale", [](AttentionSpec& s) { s.scale = 1.0; }},
        {"softcap", [](AttentionSpec& s) { s.softcap = 30.0; }},
        {"alibi", [](AttentionSpec& s) { s.alibi = true; }},
        {"sink", [](AttentionSpec& s) { s.sink = true; }},
        {"lse", [](AttentionSpec& s) { s.lse = true; }},
        {"o_dtype", [](AttentionSpec& s) { s.o_dtype = DType::bf16; }},
        {"precision", [](AttentionSpec& s) { s.precision = Precision::high; }},
        {"consistency", [](AttentionSpec& s) { s.consistency = Consistency::bitwise; }},
    };
    std::size_t counting = 0;
    for (const RequestField& field : request_fields()) counting += counts(field.name, Op::append);
    CHECK(counting + std::size(cases) == request_fields().size());  // no field is forgotten here
    for (const auto& [field, change] : cases) {
        AttentionSpec spec = append();
        change(spec);
        CHECK(refused([&] { validate(spec, {}); }).field() == field);
    }
    const std::pair<const char*, Change> of_latents[] = {
        {"head_dim_qk", [](AttentionSpec& s) { s.head_dim_qk = 128; }},
        {"head_dim_vo", [](AttentionSpec& s) { s.head_dim_vo = 128; }},
        {"page_order", [](AttentionSpec& s) { s.page_order = PageOrder::HND; }},
        {"q_norm", [](AttentionSpec& s) { s.q_norm = true; }},
        {"v_norm", [](AttentionSpec& s) { s.v_norm = true; }},
    };
    for (const auto& [field, change] : of_latents) {
        AttentionSpec spec = latents();
        change(spec);
        const InvalidRequest error = refused([&] { validate(spec, {}); });
        CHECK(error.field() == field);
        CHECK(contains(error.accepted(), "op append and head_dim_ckv"));
    }
    AttentionSpec heads = append();
    heads.head_dim_kpe = 64;
    CHECK(refused([&] { validate(heads, {}); }).field() == "head_dim_kpe");
}

TEST_CASE("an append's words count for no other op", "[append][validate]") {
    for (const auto& [field, change] : append_words()) {
        AttentionSpec spec{.head_dim_qk = 64, .q_heads = 4};
        change(spec);
        CHECK(refused([&] { validate(spec, {}); }).field() == field);
    }
}

TEST_CASE("the fields of an append have their bounds", "[append][validate]") {
    const std::pair<const char*, Change> cases[] = {
        {"kv", [](AttentionSpec& s) { s.kv = KvStorage::ragged; }},
        {"page_size", [](AttentionSpec& s) { s.kv = KvStorage::paged; }},
        {"kv_heads", [](AttentionSpec& s) { s.kv_heads = 5; }},
        {"rotary_dim", [](AttentionSpec& s) { s.rope = Rope::half, s.rotary_dim = 63; }},
        {"rotary_dim", [](AttentionSpec& s) { s.rope = Rope::half, s.rotary_dim = 130; }},
        {"rotary_dim", [](AttentionSpec& s) { s.rope = Rope::half, s.rotary_dim = -2; }},
        {"rotary_dim", [](AttentionSpec& s) { s.rotary_dim = 64; }},
        {"rope_table", [](AttentionSpec& s) { s.rope_table = RopeTable::frequencies; }},
        {"rope_factor", [](AttentionSpec& s) { s.rope_factor = 2.0; }},
        {"rope_factor", [](AttentionSpec& s) { s.rope = Rope::half, s.rope_factor = 2.0; }},
        {"rope_factor",
         [](AttentionSpec& s) {
             s.rope = Rope::half, s.rope_table = RopeTable::frequencies, s.rope_factor = -1.0;
         }},
        {"norm_eps", [](AttentionSpec& s) { s.norm_eps = 1e-6; }},
        {"norm_eps", [](AttentionSpec& s) { s.k_norm = true, s.norm_eps = 0.0; }},
        {"kv_dtype", [](AttentionSpec& s) { s.kv_dtype = DType::fp16; }},
        {"kv_scale", [](AttentionSpec& s) { s.kv_scale = KvScale::tensor; }},
        {"q_dtype", [](AttentionSpec& s) { s.q_dtype = DType::fp16; }},
        {"slots", [](AttentionSpec& s) { s.slots = static_cast<Slots>(7); }},
        {"check_slots", [](AttentionSpec& s) { s.slots = Slots::table, s.check_slots = true; }},
        {"rope", [](AttentionSpec& s) { s.rope = static_cast<Rope>(7); }},
    };
    for (const auto& [field, change] : cases) {
        AttentionSpec spec = append();
        change(spec);
        CAPTURE(field);
        CHECK(refused([&] { validate(spec, {}); }).field() == field);
    }
    AttentionSpec narrow = append();
    narrow.head_dim_qk = 72, narrow.kv_dtype = DType::e4m3;
    CHECK_THROWS_AS(validate(narrow, {}), Unsupported);
    AttentionSpec no_position = latents();
    no_position.head_dim_kpe = 0, no_position.rope = Rope::half;
    CHECK(refused([&] { validate(no_position, {}); }).field() == "rope");
}

TEST_CASE("slots are compared where each token has one", "[append][validate]") {
    AttentionSpec spec = append();
    spec.check_slots = true;
    const Problem checked = validate(spec, {});
    CHECK(checked.spec.check_slots);
    CHECK(parse_request(to_json({checked.spec, {}, {}})).spec == checked.spec);
    CHECK(contains(request_flags(checked), "--check-slots"));
    spec.slots = Slots::table;
    const InvalidRequest error = refused([&] { validate(spec, {}); });
    CHECK(error.field() == "check_slots");
    CHECK(contains(error.accepted(), "slots mapping alone"));
}

TEST_CASE("scales of tokens are computed for what has them", "[append][validate]") {
    AttentionSpec heads = append();
    heads.kv_dtype = DType::e4m3;
    for (const KvScale scale : {KvScale::token_head, KvScale::block128}) {
        heads.kv_scale = scale;
        const Problem problem = validate(heads, {});
        CHECK(problem.spec.kv_scale == scale);
        CHECK(parse_request(to_json({problem.spec, {}, {}})).spec == problem.spec);
    }
    AttentionSpec wide = heads;
    wide.head_dim_qk = 256;
    const auto unsupported = [](const AttentionSpec& spec) -> std::string {
        try {
            validate(spec, {});
        } catch (const Unsupported& error) {
            return error.what();
        }
        return "";
    };
    CHECK(contains(unsupported(wide), "kv_scale block128 with head_dim_qk 256"));
    CHECK(contains(unsupported(wide), "token_head"));
    wide.kv_scale = KvScale::token_head;
    CHECK(unsupported(wide).empty());
    wide.kv_scale = KvScale::block128, wide.head_dim_qk = 64, wide.head_dim_vo = 256;
    CHECK(contains(unsupported(wide), "head_dim_vo 256"));
    AttentionSpec latent = latents();
    latent.kv_dtype = DType::e5m2, latent.kv_scale = KvScale::block128;
    latent.head_dim_kpe = 8;  // of 16 bits, which need no multiple of 16
    CHECK(unsupported(latent).empty());
    latent.head_dim_ckv = 192;
    CHECK(contains(unsupported(latent), "kv_scale block128 with head_dim_ckv 192"));
    heads.kv_dtype = DType::bf16;
    CHECK(refused([&] { validate(heads, {}); }).field() == "kv_scale");
}

TEST_CASE("a position of 8 bits has a multiple of 16 columns", "[append][validate]") {
    for (const bool of_queries : {false, true}) {
        AttentionSpec latent = latents();
        (of_queries ? latent.q_dtype : latent.kv_dtype) = DType::e4m3;
        CHECK_NOTHROW(validate(latent, {}));
        for (const std::int64_t columns : {8, 24, 40}) {
            CAPTURE(of_queries, columns);
            latent.head_dim_kpe = columns;
            CHECK_THROWS_WITH(validate(latent, {}),
                              fmt::format("head_dim_kpe {} with {} e4m3 is not supported; supported are "
                                          "multiples of 16",
                                          columns, of_queries ? "q_dtype" : "kv_dtype"));
        }
        latent.head_dim_kpe = 16;
        CHECK_NOTHROW(validate(latent, {}));
    }
}

TEST_CASE("bad append requests are refused by the field", "[append][request]") {
    struct Bad {
        std::string text, field, message;
    };
    const Bad cases[] = {
        {R"({"op": "append", "q_heads": 1})", "head_dim", "required"},
        {R"({"op": "append", "head_dim": 64})", "q_heads", "required"},
        {R"({"op": "append", "head_dim_ckv": 512, "q_heads": 1})", "head_dim_kpe", "required"},
        {R"({"op": "append", "head_dim": 64, "head_dim_ckv": 512, "q_heads": 1})", "head_dim",
         "beside head_dim_ckv"},
        {R"({"op": "append", "head_dim": 64, "q_heads": 1, "rope": "yarn"})", "rope",
         "none, half or interleaved"},
        {R"({"op": "append", "head_dim": 64, "q_heads": 1, "k_norm": 1})", "k_norm", "true or false"},
    };
    for (const Bad& bad : cases) {
        const InvalidRequest error = refused([&] { (void)parse_request(bad.text); });
        INFO(error.what());
        CHECK(error.field() == bad.field);
        CHECK(contains(error.what(), bad.message));
    }
}
