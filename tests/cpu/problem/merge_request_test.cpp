// Requests of op merge: which fields count, and what the others are refused with.
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "append_words.hpp"
#include "attnsmith/spec.hpp"
#include "expect.hpp"
#include "problem/request/problem.hpp"
#include "problem/request/request_fields.hpp"

using namespace attnsmith;
using namespace attnsmith::problem;
using attnsmith::test::append_words;
using attnsmith::test::contains;
using attnsmith::test::refused;
using attnsmith::test::SpecChange;

namespace {

AttentionSpec merge() { return {.op = Op::merge, .head_dim_vo = 128, .q_heads = 32}; }

const std::string kGood = R"({"op": "merge", "head_dim": 128, "q_heads": 32})";

std::string with(const std::string& members) {
    return kGood.substr(0, kGood.size() - 1) + ", " + members + "}";
}

}  // namespace

TEST_CASE("a merge request is read and written", "[merge][request]") {
    const AttentionRequest request = parse_request(
        R"({"op": "merge", "dtype": "fp16", "head_dim": 72, "q_heads": 3, "lse": true, "alignment": 4, "batch": 2,
            "q_len": 7, "sm": [80, 90]})");
    AttentionSpec spec = merge();
    spec.dtype = DType::fp16;
    spec.head_dim_vo = 72;
    spec.q_heads = 3;
    spec.lse = true;
    spec.alignment = 4;
    CHECK(request == AttentionRequest{spec, {2, 7, 1}, {80, 90}});
    CHECK(to_json(request) ==
          R"({"op":"merge","dtype":"fp16","head_dim_vo":72,"q_heads":3,"lse":true,"alignment":4,"batch":2,)"
          R"("q_len":7,"kv_len":1,"sm":[80,90]})");
    CHECK(parse_request(to_json(request)) == request);
    CHECK(parse_request(kGood).spec == merge());
    CHECK(parse_request(R"({"q_heads": 32, "head_dim_vo": 128, "op": "merge"})").spec == merge());
    // Fields that do not count may say what they say by themselves.
    CHECK(parse_request(with(R"("mask": "full", "kv": "dense", "sink": false, "scale": null)")).spec ==
          merge());
}

TEST_CASE("validating a merge changes nothing", "[merge][validate]") {
    CHECK(validate(merge(), {3, 4, 5}) == Problem{merge(), {3, 4, 5}});
}

TEST_CASE("what does not count for a merge is refused by name", "[merge][validate]") {
    std::vector<SpecChange> cases = {
        {"head_dim_qk", [](AttentionSpec& s) { s.head_dim_qk = 128; }},
        {"head_dim_ckv", [](AttentionSpec& s) { s.head_dim_ckv = 512; }},
        {"head_dim_kpe", [](AttentionSpec& s) { s.head_dim_kpe = 64; }},
        {"kv_heads", [](AttentionSpec& s) { s.kv_heads = 8; }},
        {"mask", [](AttentionSpec& s) { s.mask = Mask::causal; }},
        {"window_left", [](AttentionSpec& s) { s.window_left = 0; }},
        {"window_right", [](AttentionSpec& s) { s.window_right = 5; }},
        {"attention_chunk", [](AttentionSpec& s) { s.attention_chunk = 64; }},
        {"causal_block", [](AttentionSpec& s) { s.causal_block = 64; }},
        {"scale", [](AttentionSpec& s) { s.scale = 1.0; }},
        {"softcap", [](AttentionSpec& s) { s.softcap = 30.0; }},
        {"alibi", [](AttentionSpec& s) { s.alibi = true; }},
        {"sink", [](AttentionSpec& s) { s.sink = true; }},
        {"kv", [](AttentionSpec& s) { s.kv = KvStorage::paged; }},
        {"page_order", [](AttentionSpec& s) { s.page_order = PageOrder::HND; }},
        {"page_size", [](AttentionSpec& s) { s.page_size = 16; }},
        {"index_dtype", [](AttentionSpec& s) { s.index_dtype = DType::int64; }},
        {"o_dtype", [](AttentionSpec& s) { s.o_dtype = DType::bf16; }},
        {"kv_dtype", [](AttentionSpec& s) { s.kv_dtype = DType::e4m3; }},
        {"kv_scale", [](AttentionSpec& s) { s.kv_scale = KvScale::head; }},
        {"precision", [](AttentionSpec& s) { s.precision = Precision::high; }},
        {"consistency", [](AttentionSpec& s) { s.consistency = Consistency::bitwise; }},
    };
    for (SpecChange& word : append_words()) cases.push_back(std::move(word));
    std::size_t counting = 0;
    for (const RequestField& field : request_fields()) counting += counts(field.name, Op::merge);
    CHECK(counting + cases.size() == request_fields().size());  // no field is forgotten here
    for (const auto& [field, change] : cases) {
        AttentionSpec spec = merge();
        change(spec);
        const InvalidRequest error = refused([&] { validate(spec, {}); });
        INFO(error.what());
        CHECK(error.field() == field);
        CHECK(contains(error.accepted(),
                       "it takes dtype, head_dim or head_dim_vo, q_heads, lse and alignment"));
    }
}

TEST_CASE("the fields of a merge have their bounds", "[merge][validate]") {
    const std::pair<const char*, std::function<void(AttentionSpec&)>> cases[] = {
        {"op", [](AttentionSpec& s) { s.op = static_cast<Op>(9); }},
        {"dtype", [](AttentionSpec& s) { s.dtype = DType::int32; }},
        {"head_dim_vo", [](AttentionSpec& s) { s.head_dim_vo = 0; }},
        {"head_dim_vo", [](AttentionSpec& s) { s.head_dim_vo = -8; }},
        {"q_heads", [](AttentionSpec& s) { s.q_heads = 0; }},
        {"alignment", [](AttentionSpec& s) { s.alignment = 1; }},
    };
    for (const auto& [field, change] : cases) {
        AttentionSpec spec = merge();
        change(spec);
        CHECK(refused([&] { validate(spec, {}); }).field() == field);
    }
    CHECK(refused([&] { validate(merge(), {0, 1, 1}); }).field() == "batch");
    AttentionSpec spec = merge();
    spec.op = Op::append;
    CHECK(refused([&] { validate(spec, {}); }).field() == "head_dim_qk");
}

TEST_CASE("head dimensions of a merge that are not built are unsupported", "[merge][request]") {
    for (const char* request : {R"({"op": "merge", "head_dim": 12, "q_heads": 1})",
                                R"({"op": "merge", "head_dim_vo": 520, "q_heads": 1})"})
        CHECK_THROWS_AS(parse_request(request), Unsupported);
}

TEST_CASE("bad merge requests are refused by the field", "[merge][request]") {
    struct Bad {
        std::string text, field, message;
    };
    const Bad cases[] = {
        {R"({"op": "merge", "q_heads": 1})", "head_dim", "required"},
        {R"({"op": "merge", "head_dim_qk": 128, "q_heads": 1})", "head_dim", "required"},
        {R"({"op": "merge", "head_dim": 0, "q_heads": 1})", "head_dim", "a multiple of 8"},
        {R"({"op": "merge", "head_dim": 64})", "q_heads", "required"},
        {with(R"("head_dim_vo": 64)"), "head_dim_vo", "either head_dim or head_dim_vo"},
        {with(R"("kv_heads": 8)"), "kv_heads", "with op merge"},
        {with(R"("mask": "causal")"), "mask", "causal is not accepted"},
        {with(R"("page_size": 16)"), "page_size", "with op merge"},
        {with(R"("lse": 1)"), "lse", "true or false"},
        {with(R"("states": 4)"), "states", "an unknown field"},
    };
    for (const Bad& bad : cases) {
        const InvalidRequest error = refused([&] { (void)parse_request(bad.text); });
        INFO(error.what());
        CHECK(error.field() == bad.field);
        CHECK(contains(error.what(), bad.message));
    }
}

TEST_CASE("a number that is none is named in the error of an op that does not take it", "[merge][validate]") {
    AttentionSpec spec{.op = Op::merge, .head_dim_vo = 64, .q_heads = 8};
    for (const auto& [number, shown] : {std::pair{std::numeric_limits<double>::quiet_NaN(), "NaN"},
                                        {std::numeric_limits<double>::infinity(), "Infinity"}}) {
        spec.scale = number;
        const InvalidRequest error = refused([&] { validate(spec, {}); });
        CHECK(error.field() == "scale");
        CHECK(error.value() == shown);
    }
}
