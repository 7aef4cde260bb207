// Requests of op mla: which fields count, what they must be, and what the others are refused with.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "append_words.hpp"
#include "attnsmith/coverage.hpp"
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
using attnsmith::test::SpecChange;

namespace {

AttentionSpec mla() {
    AttentionSpec spec{.op = Op::mla, .head_dim_ckv = 512, .head_dim_kpe = 64, .q_heads = 128};
    spec.scale = 0.125;
    return spec;
}

const std::string kGood =
    R"({"op": "mla", "head_dim_ckv": 512, "head_dim_kpe": 64, "q_heads": 128, "scale": 0.125})";

std::string with(const std::string& members) {
    return kGood.substr(0, kGood.size() - 1) + ", " + members + "}";
}

}  // namespace

TEST_CASE("a request of op mla is read and written", "[mla][request]") {
    const AttentionRequest request = parse_request(
        with(R"("dtype": "fp16", "mask": "causal", "lse": true, "kv": "paged", "page_size": 64, "batch": 2,
                "q_len": 7, "kv_len": 99, "sm": [80, 89], "consistency": "bitwise", "o_dtype": "fp32")"));
    AttentionSpec spec = mla();
    spec.dtype = DType::fp16;
    spec.kv_heads = 1;
    spec.mask = Mask::causal;
    spec.lse = true;
    spec.kv = KvStorage::paged;
    spec.page_size = 64;
    spec.o_dtype = DType::fp32;
    spec.kv_dtype = DType::fp16;
    spec.consistency = Consistency::bitwise;
    CHECK(request == AttentionRequest{spec, {2, 7, 99}, {80, 89}});
    CHECK(to_json(request) ==
          R"({"op":"mla","dtype":"fp16","head_dim_ckv":512,"head_dim_kpe":64,"q_heads":128,"kv_heads":1,)"
          R"("mask":"causal","scale":0.125,"lse":true,"kv":"paged","page_size":64,"index_dtype":"int32",)"
          R"("alignment":16,"o_dtype":"fp32","kv_dtype":"fp16","kv_scale":"none","consistency":"bitwise",)"
          R"("batch":2,"q_len":7,"kv_len":99,"sm":[80,89]})");
    CHECK(parse_request(to_json(request)) == request);
    CHECK(validate(request.spec, request.sizes).spec == request.spec);
    // One KV head may be said.
    CHECK(parse_request(with(R"("kv_heads": 1)")).spec == parse_request(kGood).spec);
}

TEST_CASE("what has no default must be said of op mla", "[mla][request]") {
    for (const std::string field : {"head_dim_ckv", "head_dim_kpe", "q_heads", "scale"}) {
        std::string text = kGood;
        const std::size_t begin = text.find("\"" + field);
        const std::size_t end = std::min(text.find(", ", begin), text.find('}', begin));
        text.replace(begin, end - begin, "\"dtype\": \"bf16\"");
        const InvalidRequest error = refused([&] { (void)parse_request(text); });
        INFO(error.what());
        CHECK(error.field() == field);
        CHECK(error.value() == "nothing");
    }
    AttentionSpec spec = mla();
    spec.scale.reset();
    CHECK(contains(refused([&] { validate(spec, {}); }).accepted(), "1/sqrt(192)"));
    CHECK(refused([&] { (void)parse_request(with(R"("head_dim": 576)")); }).field() == "head_dim");
}

TEST_CASE("what does not count for op mla is refused by name", "[mla][validate]") {
    std::vector<SpecChange> cases = {
        {"head_dim_qk", [](AttentionSpec& s) { s.head_dim_qk = 576; }},
        {"head_dim_vo", [](AttentionSpec& s) { s.head_dim_vo = 512; }},
        {"window_left", [](AttentionSpec& s) { s.window_left = 0; }},
        {"window_right", [](AttentionSpec& s) { s.window_right = 5; }},
        {"attention_chunk", [](AttentionSpec& s) { s.attention_chunk = 64; }},
        {"causal_block", [](AttentionSpec& s) { s.causal_block = 64; }},
        {"softcap", [](AttentionSpec& s) { s.softcap = 30.0; }},
        {"alibi", [](AttentionSpec& s) { s.alibi = true; }},
        {"sink", [](AttentionSpec& s) { s.sink = true; }},
        {"page_order", [](AttentionSpec& s) { s.page_order = PageOrder::HND; }},
        {"precision", [](AttentionSpec& s) { s.precision = Precision::high; }},
    };
    for (SpecChange& word : append_words()) cases.push_back(std::move(word));
    std::size_t counting = 1;  // and head_dim, which only JSON has
    for (const RequestField& field : request_fields()) counting += counts(field.name, Op::mla);
    CHECK(counting + cases.size() == request_fields().size());  // no field is forgotten here
    for (const auto& [field, change] : cases) {
        AttentionSpec spec = mla();
        change(spec);
        const InvalidRequest error = refused([&] { validate(spec, {}); });
        INFO(error.what());
        CHECK(error.field() == field);
        CHECK(contains(error.accepted(), "it takes dtype, head_dim_ckv, head_dim_kpe, q_heads"));
    }
    // And its own are no other op's.
    const AttentionSpec other{.head_dim_qk = 64, .head_dim_ckv = 512, .q_heads = 4};
    CHECK(refused([&] { validate(other, {}); }).field() == "head_dim_ckv");
    CHECK(refused([&] {
              (void)parse_request(R"({"head_dim": 64, "q_heads": 4, "head_dim_kpe": 64})");
          }).field() == "head_dim_kpe");
}

TEST_CASE("the fields of op mla have their bounds", "[mla][validate]") {
    const std::pair<const char*, std::function<void(AttentionSpec&)>> cases[] = {
        {"head_dim_ckv", [](AttentionSpec& s) { s.head_dim_ckv = 0; }},
        {"head_dim_ckv", [](AttentionSpec& s) { s.head_dim_ckv = -64; }},
        {"head_dim_kpe", [](AttentionSpec& s) { s.head_dim_kpe = -8; }},
        {"q_heads", [](AttentionSpec& s) { s.q_heads = 0; }},
        {"kv_heads", [](AttentionSpec& s) { s.kv_heads = 128; }},
        {"scale", [](AttentionSpec& s) { s.scale = -1.0; }},
        {"page_size", [](AttentionSpec& s) { s.kv = KvStorage::paged; }},
        {"o_dtype", [](AttentionSpec& s) { s.o_dtype = DType::fp16; }},
    };
    for (const auto& [field, change] : cases) {
        AttentionSpec spec = mla();
        change(spec);
        CHECK(refused([&] { validate(spec, {}); }).field() == field);
    }
    // Packed query rows are numbered in 32 bits.
    CHECK(refused([&] { validate(mla(), {1, std::int64_t{1} << 25, 1}); }).field() == "q_len");
    for (const auto& [ckv, kpe] : {std::pair(520, 64), std::pair(576, 64), std::pair(72, 64),
                                   std::pair(512, 72), std::pair(512, 12)}) {
        AttentionSpec spec = mla();
        spec.head_dim_ckv = ckv, spec.head_dim_kpe = kpe;
        CHECK_THROWS_AS(validate(spec, {}), Unsupported);
    }
    for (const auto& [ckv, kpe] : {std::pair(64, 0), std::pair(512, 8), std::pair(448, 56)}) {
        AttentionSpec spec = mla();
        spec.head_dim_ckv = ckv, spec.head_dim_kpe = kpe;
        CHECK(validate(spec, {}).spec.head_dim_ckv == ckv);
    }
}

TEST_CASE("scales of blocks are of whole blocks of the latent", "[mla][validate]") {
    for (const std::int64_t ckv : {128, 256, 512}) {
        AttentionSpec spec = mla();
        spec.head_dim_ckv = ckv, spec.kv_dtype = DType::e4m3, spec.kv_scale = KvScale::block128;
        CHECK_NOTHROW(validate(spec, {}));
    }
    for (const std::int64_t ckv : {64, 192, 384, 448}) {
        AttentionSpec spec = mla();
        spec.head_dim_ckv = ckv, spec.kv_dtype = DType::e4m3, spec.kv_scale = KvScale::block128;
        try {
            validate(spec, {});
            FAIL("not refused");
        } catch (const Unsupported& error) {
            INFO(error.what());
            CHECK((contains(error.what(), "head_dim_ckv") && contains(error.what(), "kv_scale token_head")));
        }
        spec.kv_scale = KvScale::token_head;
        CHECK_NOTHROW(validate(spec, {}));
    }
}

TEST_CASE("what is recorded of op mla can be asked for again", "[mla][recorded]") {
    AttentionSpec spec = mla();
    spec.kv = KvStorage::paged;
    spec.page_size = 64;
    const Problem problem = validate(spec, {});
    CHECK(parse_request(request_json(problem)).spec == problem.spec);
    CHECK(request_flags(problem) ==
          "--op mla --head-dim-ckv 512 --head-dim-kpe 64 --q-heads 128 --scale 0.125 --kv paged "
          "--page-size 64");
}
