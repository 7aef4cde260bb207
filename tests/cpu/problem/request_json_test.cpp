#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "attnsmith/spec.hpp"
#include "expect.hpp"
#include "problem/compute_capability.hpp"
#include "problem/limits.hpp"
#include "problem/request/problem.hpp"
#include "problem/request/request_fields.hpp"
#include "problem/request/request_json.hpp"
#include "problem/request/sm_list.hpp"

using namespace attnsmith;
using namespace attnsmith::problem;
using attnsmith::test::contains;
using attnsmith::test::refused;

namespace {

const std::string kGood = R"({"head_dim": 128, "q_heads": 32, "kv_heads": 8})";

// kGood with more members.
std::string with(const std::string& members) {
    return kGood.substr(0, kGood.size() - 1) + ", " + members + "}";
}

struct Bad {
    std::string text;
    std::string field;
    std::string message;  // a part of it
};

}  // namespace

TEST_CASE("the design's example is read", "[request]") {
    const AttentionRequest request = parse_request(R"({
        "op": "attention", "dtype": "bf16", "head_dim": 128, "q_heads": 32, "kv_heads": 8, "mask": "causal",
        "kv": "paged", "page_size": 16, "q_len": 1024, "kv_len": 4096, "batch": 8, "sm": 90})");
    CHECK(request.spec.dtype == DType::bf16);
    CHECK(request.spec.head_dim_qk == 128);
    CHECK(request.spec.head_dim_vo == 128);
    CHECK(request.spec.q_heads == 32);
    CHECK(request.spec.kv_heads == 8);
    CHECK(request.spec.mask == Mask::causal);
    CHECK(request.spec.kv == KvStorage::paged);
    CHECK(request.spec.page_size == 16);
    CHECK(request.sizes == PlanSizes{8, 1024, 4096});
    CHECK(request.sm == std::vector<int>{90});
}

TEST_CASE("every field reaches its place", "[request]") {
    const AttentionRequest request = parse_request(R"({
        "dtype": "float16", "head_dim_qk": 192, "head_dim_vo": 128, "q_heads": 12, "kv_heads": 3, "mask": "none",
        "window_left": 7, "window_right": 9, "scale": 0.5, "softcap": 30, "alibi": true, "sink": true, "lse": true,
        "kv": "paged", "page_order": "HND", "page_size": 3, "index_dtype": "int64", "alignment": 8,
        "o_dtype": "float32", "kv_dtype": "fp8", "kv_scale": "head", "precision": "high",
        "consistency": "bitwise", "batch": 2, "q_len": 3, "kv_len": 5, "sm": [80, "90a", "120"]})");
    AttentionSpec spec;
    spec.dtype = DType::fp16;
    spec.head_dim_qk = 192;
    spec.head_dim_vo = 128;
    spec.q_heads = 12;
    spec.kv_heads = 3;
    spec.window_left = 7;
    spec.window_right = 9;
    spec.scale = 0.5;
    spec.softcap = 30.0;
    spec.alibi = spec.sink = spec.lse = true;
    spec.kv = KvStorage::paged;
    spec.page_order = PageOrder::HND;
    spec.page_size = 3;
    spec.index_dtype = DType::int64;
    spec.alignment = 8;
    spec.o_dtype = DType::fp32;
    spec.kv_dtype = DType::e4m3;
    spec.kv_scale = KvScale::head;
    spec.precision = Precision::high;
    spec.consistency = Consistency::bitwise;
    CHECK(request == AttentionRequest{spec, {2, 3, 5}, {80, 90, 120}});
}

TEST_CASE("the least request, normalised", "[request]") {
    CHECK(
        to_json(parse_request(kGood)) ==
        R"({"op":"attention","dtype":"bf16","head_dim_qk":128,"head_dim_vo":128,"q_heads":32,"kv_heads":8,)"
        R"("mask":"full","window_left":null,"window_right":null,"attention_chunk":null,"causal_block":null,)"
        R"("scale":0.08838834764831843,"softcap":null,)"
        R"("alibi":false,"sink":false,"lse":false,"kv":"dense","page_order":"NHD","page_size":0,)"
        R"("index_dtype":"int32","alignment":16,"o_dtype":"bf16","kv_dtype":"bf16","kv_scale":"none",)"
        R"("precision":"standard","consistency":"standard",)"
        R"("batch":1,"q_len":1,"kv_len":1,"sm":[]})");
}

TEST_CASE("the output's type is that of the inputs unless it is given", "[request]") {
    CHECK(parse_request(with(R"("dtype": "fp16")")).spec.o_dtype == DType::fp16);
    CHECK(parse_request(with(R"("dtype": "fp16", "o_dtype": "half")")) ==
          parse_request(with(R"("dtype": "fp16")")));
    CHECK(parse_request(with(R"("o_dtype": "f32")")).spec.o_dtype == DType::fp32);
    CHECK(to_json(parse_request(with(R"("o_dtype": "float32")"))).find(R"("o_dtype":"fp32")") !=
          std::string::npos);
}

TEST_CASE("keys and values are of the queries' type unless it is given", "[request]") {
    CHECK(parse_request(with(R"("dtype": "fp16")")).spec.kv_dtype == DType::fp16);
    for (const char* const word : {"e4m3", "fp8", "fp8_e4m3", "float8_e4m3fn"})
        CHECK(parse_request(with(fmt::format(R"("kv_dtype": "{}")", word))).spec.kv_dtype == DType::e4m3);
    for (const char* const word : {"e5m2", "fp8_e5m2", "float8_e5m2"})
        CHECK(parse_request(with(fmt::format(R"("kv_dtype": "{}")", word))).spec.kv_dtype == DType::e5m2);
    // Without a scale there is none, whatever the type is.
    CHECK(parse_request(with(R"("kv_dtype": "e5m2")")).spec.kv_scale == KvScale::none);
    // 16 elements are what kernels take at a time.
    CHECK_THROWS_AS(parse_request(R"({"head_dim": 72, "q_heads": 4, "kv_dtype": "e4m3"})"), Unsupported);
    CHECK_THROWS_AS(
        parse_request(R"({"head_dim_qk": 64, "head_dim_vo": 40, "q_heads": 4, "kv_dtype": "e4m3"})"),
        Unsupported);
    CHECK_NOTHROW(parse_request(R"({"head_dim": 80, "q_heads": 4, "kv_dtype": "e4m3"})"));
}

TEST_CASE("a problem's JSON is the request's without the SMs", "[request]") {
    const AttentionRequest request = parse_request(kGood);
    nlohmann::ordered_json whole = nlohmann::ordered_json::parse(to_json(request));
    whole.erase("sm");
    CHECK(to_json(validate(request.spec, request.sizes)).dump() == whole.dump());
}

TEST_CASE("suffixes of an SM that say nothing are told of by name", "[request]") {
    for (const char* text : {"90", "\"80,90a\"", "\"all\"", "\"native\"", "[90, \"120a\"]", "null"}) {
        INFO(text);
        CHECK(unused_sm_suffixes(nlohmann::json::parse(text)).empty());
    }
    const std::vector<std::string> told = unused_sm_suffixes({"sm_100f", "80,90b", 120});
    REQUIRE(told.size() == 2);
    CHECK(contains(told[0], "\"sm_100f\" is taken as 100"));
    CHECK(contains(told[1], "\"90b\" is taken as 90"));
}

TEST_CASE("the ways to name SMs", "[request]") {
    const auto sms = [](const std::string& text) { return parse_request(with("\"sm\": " + text)).sm; };
    CHECK(sms("90") == std::vector<int>{90});
    CHECK(sms("\"90\"") == std::vector<int>{90});
    CHECK(sms("\"90a\"") == std::vector<int>{90});
    CHECK(sms("\"80,89,90a\"") == std::vector<int>{80, 89, 90});
    CHECK(sms("[120, \"80\", 120, \"120a\"]") == std::vector<int>{120, 80});
    CHECK(sms(R"(["sm_90", "8.9", "100f"])") == std::vector<int>{90, 89, 100});
    CHECK(sms("\"all\"") == std::vector<int>(known_sms().begin(), known_sms().end()));
    CHECK(sms("\"native\"").empty());
    CHECK(sms("[]").empty());
    CHECK(sms("null").empty());
}

TEST_CASE("null is absent where absent has a meaning", "[request]") {
    int optional = 0;
    for (const problem::RequestField& field : problem::request_fields()) {
        if (!problem::is_absent_by_default(field)) continue;
        CAPTURE(field.name);
        CHECK(parse_request(with("\"" + std::string(field.name) + "\": null")) == parse_request(kGood));
        ++optional;
    }
    CHECK(optional >= 6);
}

TEST_CASE("what other libraries write for nothing is nothing", "[request]") {
    CHECK(parse_request(with(R"("window_left": -1, "window_right": -1, "softcap": 0)")) ==
          parse_request(kGood));
    CHECK(parse_request(with(R"("mask": "causal", "window_left": 7, "window_right": 0)")) ==
          parse_request(with(R"("mask": "causal", "window_left": 7)")));
}

TEST_CASE("what is meaningful and not supported is Unsupported", "[request]") {
    for (const std::string& request :
         {std::string(R"({"head_dim": 7, "q_heads": 1})"), std::string(R"({"head_dim": 1000, "q_heads": 1})"),
          std::string(R"({"head_dim_qk": 20, "q_heads": 1})"),
          std::string(R"({"head_dim_qk": 576, "head_dim_vo": 512, "q_heads": 1})"),
          with(R"("dtype": "fp32")"), with(R"("dtype": "float32")")}) {
        INFO(request);
        CHECK_THROWS_AS(parse_request(request), Unsupported);
    }
}

TEST_CASE("bad requests are refused by the field", "[request]") {
    const Bad cases[] = {
        // Head dimensions.
        {R"({"head_dim": 0, "q_heads": 1})", "head_dim", "a multiple of 8"},
        {R"({"head_dim": -8, "q_heads": 1})", "head_dim", "-8 is not accepted"},
        {R"({"head_dim": 99999999999999999999, "q_heads": 1})", "head_dim",
         "99999999999999999999 is not accepted"},
        {R"({"head_dim": -99999999999999999999, "q_heads": 1})", "head_dim", "fits 64 bits"},
        {R"({"head_dim": 18446744073709551615, "q_heads": 1})", "head_dim",
         "18446744073709551615 is not accepted"},
        {R"({"head_dim_qk": 128, "head_dim_vo": 0, "q_heads": 1})", "head_dim_vo", "leave the field out"},
        {R"({"head_dim_vo": 128, "q_heads": 1})", "head_dim_qk", "required"},
        {R"({"head_dim": 128, "head_dim_vo": 64, "q_heads": 1})", "head_dim_vo", "either head_dim"},
        {R"({"head_dim": 128, "head_dim_qk": 128, "q_heads": 1})", "head_dim_qk", "either head_dim"},
        {R"({"q_heads": 1})", "head_dim", "required"},
        {R"({})", "head_dim", "required"},
        // Heads.
        {R"({"head_dim": 128})", "q_heads", "required"},
        {R"({"head_dim": 128, "q_heads": 32, "kv_heads": 5})", "kv_heads", "a divisor of q_heads"},
        {R"({"head_dim": 128, "q_heads": 32, "kv_heads": 0})", "kv_heads", "leave the field out"},
        {R"({"head_dim": 128, "q_heads": 0})", "q_heads", "from 1 to 65536"},
        // Types.
        {R"({"head_dim": "128", "q_heads": 1})", "head_dim", "\"128\" is not accepted; expected an integer"},
        {R"({"head_dim": 128.0, "q_heads": 1})", "head_dim", "an integer"},
        {R"({"head_dim": 1e2, "q_heads": 1})", "head_dim", "an integer"},
        {R"({"head_dim": null, "q_heads": 1})", "head_dim", "null is not accepted"},
        {R"({"head_dim": [128], "q_heads": 1})", "head_dim", "a list of 1 is not accepted"},
        {R"({"head_dim": {"x": 1}, "q_heads": 1})", "head_dim", "an object is not accepted"},
        {R"({"head_dim": true, "q_heads": 1})", "head_dim", "true is not accepted"},
        {with(R"("alibi": 1)"), "alibi", "true or false"},
        {with(R"("sink": "true")"), "sink", "true or false"},
        {with(R"("lse": null)"), "lse", "true or false"},
        {with(R"("scale": "0.1")"), "scale", "a number"},
        {with(R"("scale": true)"), "scale", "a number"},
        {with(R"("softcap": [])"), "softcap", "a number"},
        {with(R"("dtype": 16)"), "dtype", "fp16 or bf16"},
        {with(R"("dtype": null)"), "dtype", "fp16 or bf16"},
        {with(R"("kv": {})"), "kv", "dense, ragged or paged"},
        {with(R"("page_size": 1.5)"), "page_size", "an integer"},
        {with(R"("window_left": 1.5)"), "window_left", "an integer"},
        {with(R"("batch": "8")"), "batch", "an integer"},
        // Words and ranges.
        {with(R"("mask": "casual")"), "mask", "full or causal"},
        {with(R"("kv": "page")"), "kv", "did you mean paged?"},
        {with(R"("precision": "low")"), "precision", "standard or high"},
        {with(R"("o_dtype": "fp16")"), "o_dtype", "bf16, as dtype is, or fp32"},
        {with(R"("dtype": "fp16", "o_dtype": "bf16")"), "o_dtype", "fp16, as dtype is, or fp32"},
        {with(R"("o_dtype": "int32")"), "o_dtype", "fp16, bf16 or fp32"},
        {with(R"("kv_dtype": "fp16")"), "kv_dtype", "bf16, as dtype is, e4m3 or e5m2"},
        {with(R"("kv_dtype": "uint8")"), "kv_dtype", "fp16, bf16, e4m3 or e5m2"},
        {with(R"("kv_scale": "tensor")"), "kv_scale", "scales are of e4m3 and e5m2"},
        {with(R"("kv_dtype": "e4m3", "kv_scale": "heads")"), "kv_scale", "did you mean head?"},
        {with(R"("page_size": 16)"), "page_size", "kv is dense"},
        {with(R"("kv": "paged")"), "page_size", "from 1"},
        {with(R"("scale": 0)"), "scale", "above 0"},
        {with(R"("scale": 1e999)"), "scale", "a finite number"},
        {with(R"("softcap": -1)"), "softcap", "above 0"},
        {with(R"("window_left": -2)"), "window_left", "from 0"},
        {with(R"("alignment": 3)"), "alignment", "16, 8, 4 or 2"},
        {with(R"("alignment": 4294967312)"), "alignment", "16, 8, 4 or 2"},  // 2^32 + 16
        {with(R"("batch": 0)"), "batch", "from 1"},
        {with(R"("q_len": -1)"), "q_len", "from 0"},
        {with(R"("kv_len": 9223372036854775807)"), "kv_len", "from 0 to 1073741824"},
        {with(R"("index_dtype": "int16")"), "index_dtype", "int32 or int64"},
        // SMs.
        {with(R"("sm": 91)"), "sm", known_sms_text()},
        {with(R"("sm": 90.0)"), "sm", "a list of them"},
        {with(R"("sm": "sm_91")"), "sm", "one of 80"},
        {with(R"("sm": "90,native")"), "sm", "native alone"},
        {with(R"("sm": "all,80")"), "sm", "one of 80"},
        {with(R"("sm": "")"), "sm", "one of 80"},
        {with(R"("sm": "80,")"), "sm", "one of 80"},
        {with(R"("sm": [90, null])"), "sm", "a list of them"},
        {with(R"("sm": [[90]])"), "sm", "a list of them"},
        {with(R"("sm": 18446744073709551615)"), "sm", "18446744073709551615"},
        {with(R"("sm": {"a": 1})"), "sm", "a list of them"},
        // Fields.
        {with(R"("pagesize": 16)"), "pagesize", "page_size (did you mean that?)"},
        {with(R"("head_dims": 16)"), "head_dims", "head_dim (did you mean that?)"},
        {with(R"("temperature": 1)"), "temperature", "one of op, dtype"},
        {with(R"("": 1)"), "\"\"", "an unknown field"},
        {with(R"("q_heads": 32)"), "q_heads", "given twice"},
        {with(R"("lse": true, "lse": true)"), "lse", "given twice"},
        {with(R"("sm": [{"a": 1, "a": 2}])"), "a", "given twice"},
        {with("\"evil\\u0000\\n\\\"; system(\": 1"), "\"evil\\u0000\\n\\\"; system(\"", "an unknown field"},
        {with(R"("op": "atention")"), "op", "did you mean attention?"},
        {with(R"("op": 1)"), "op", "attention, mla, merge, append or top_k"},
        // Text.
        {"", "request", "empty text"},
        {" \n\t ", "request", "empty text"},
        {"[]", "request", "a list of 0 is not accepted; expected a JSON object"},
        {"null", "request", "null is not accepted; expected a JSON object"},
        {"\"x\"", "request", "a JSON object"},
        {"{", "request", "line 1, column 2"},
        {"{\n  \"head_dim\": 128,\n  oops", "request", "line 3, column 3"},
        {kGood + "x", "request", "malformed JSON"},
        {kGood + kGood, "request", "malformed JSON"},
        {R"({"head_dim": 128,})", "request", "malformed JSON"},
        {R"({"head_dim": 0128})", "request", "malformed JSON"},
        {R"({"head_dim": NaN})", "request", "malformed JSON"},
        {R"({'head_dim': 128})", "request", "malformed JSON"},
        {"{\"head_dim\": \"\xff\"}", "request", "malformed JSON"},
        {std::string("{\"head_dim\": 128\0}", 18), "request", "malformed JSON"},
        {"{\"head_dim\": \"" + std::string(100000, 'x'), "request", "malformed JSON"},
        {with("\"sm\": " + std::string(100, '[')), "sm", "nested too deeply"},
        {with("\"sm\": " + std::string(400000, '[')), "sm", "nested too deeply"},
        {std::string(1 << 20, ' ') + kGood, "request", "at most 1048576 bytes"},
        {with("\"" + std::string(100000, 'k') + "\": 1"), "\"" + std::string(60, 'k') + "\"...",
         "an unknown field"},
        {with("\"dtype\": \"" + std::string(100000, 'b') + "\""), "dtype", "fp16 or bf16"},
        {with("\"scale\": 1" + std::string(100000, '0')), "scale", "is not accepted"},
    };
    for (const Bad& bad : cases) {
        INFO(bad.text.substr(0, 200));
        const InvalidRequest error = refused([&] { (void)parse_request(bad.text); });
        INFO(error.what());
        CHECK(error.field() == bad.field);
        CHECK(contains(error.what(), bad.message));
    }
}

TEST_CASE("to_json refuses what parse_request would", "[request]") {
    AttentionRequest request = parse_request(kGood);
    request.sm = {91};
    CHECK(refused([&] { (void)to_json(request); }).field() == "sm");
    request.sm = {};
    request.spec.head_dim_vo = 7;
    CHECK_THROWS_AS(to_json(request), Unsupported);
    request.spec.head_dim_vo = -8;
    CHECK(refused([&] { (void)to_json(request); }).field() == "head_dim_vo");
}

// ---- properties ----

namespace {

class Random {
  public:
    explicit Random(std::uint64_t seed) : engine_(seed) {}
    std::int64_t between(std::int64_t least, std::int64_t most) {
        return std::uniform_int_distribution<std::int64_t>(least, most)(engine_);
    }
    bool coin() { return between(0, 1) == 1; }
    double factor() { return std::exp2(std::uniform_real_distribution<double>(-60, 60)(engine_)); }

  private:
    std::mt19937_64 engine_;
};

AttentionRequest random_request(Random& random) {
    AttentionRequest request;
    AttentionSpec& spec = request.spec;
    spec.dtype = random.coin() ? DType::fp16 : DType::bf16;
    spec.head_dim_qk = 8 * random.between(1, 32);
    spec.head_dim_vo = random.coin() ? 0 : 8 * random.between(1, 32);
    spec.kv_heads = random.between(1, 16);
    spec.q_heads = spec.kv_heads * random.between(1, 16);
    if (random.coin()) spec.mask = Mask::causal;
    if (random.coin()) spec.window_left = random.between(0, kMaxLength + 5);
    if (random.coin()) spec.window_right = spec.mask == Mask::causal ? 0 : random.between(0, 5000);
    if (random.coin()) spec.scale = random.factor();
    if (random.coin()) spec.softcap = random.factor();
    spec.alibi = random.coin();
    spec.sink = random.coin();
    spec.lse = random.coin();
    spec.kv = static_cast<KvStorage>(random.between(0, 2));
    if (spec.kv == KvStorage::paged) {
        spec.page_order = random.coin() ? PageOrder::NHD : PageOrder::HND;
        spec.page_size = random.between(1, 1 << 20);
    }
    spec.index_dtype = random.coin() ? DType::int32 : DType::int64;
    spec.alignment = 1 << random.between(1, 4);
    if (random.coin()) spec.o_dtype = random.coin() ? DType::fp32 : spec.dtype;
    const bool of_16 = spec.head_dim_qk % 16 == 0 && spec.head_dim_vo % 16 == 0;
    if (of_16 && random.coin()) {
        spec.kv_dtype = random.coin() ? DType::e4m3 : DType::e5m2;
        const bool is_one_block = spec.head_dim_qk <= 128 && spec.head_dim_vo <= 128;
        spec.kv_scale = static_cast<KvScale>(random.between(0, is_one_block ? 4 : 3));
    }
    spec.precision = random.coin() ? Precision::standard : Precision::high;
    spec.consistency = random.coin() ? Consistency::standard : Consistency::bitwise;
    request.sizes.batch = random.between(1, 1 << 20);
    request.sizes.q_len = random.between(0, kMaxQueryRows / request.sizes.batch / spec.q_heads);
    request.sizes.q_len = std::min(request.sizes.q_len, kMaxPackedQueries / 16);
    request.sizes.kv_len = random.between(0, kMaxLength);
    for (const int sm : known_sms()) {
        if (random.coin()) request.sm.push_back(sm);
    }
    return request;
}

}  // namespace

TEST_CASE("normalised JSON reads back as the same request", "[request][property]") {
    Random random(1);
    for (int i = 0; i < 2000; ++i) {
        const AttentionRequest request = random_request(random);
        const std::string text = to_json(request);
        INFO(text);
        const AttentionRequest read = parse_request(text);
        const Problem expected = validate(request.spec, request.sizes);
        REQUIRE(read == AttentionRequest{expected.spec, expected.sizes, request.sm});
        REQUIRE(to_json(read) == text);
    }
}

TEST_CASE("no mutation of a request does anything but throw an Error", "[request][fuzz]") {
    Random random(2);
    const std::string base = to_json(random_request(random));
    const std::string pieces[] = {
        "null", "{", "}",    "[",      "]",    "\"",  "\\u0000",      "-1", "1e400", "99999999999999999999",
        ":",    ",", "true", "\"sm\"", "\xff", "0.5", "\"head_dim\":"};
    int accepted = 0;
    int refusals = 0;
    for (int i = 0; i < 100000; ++i) {
        std::string text = base;
        for (std::int64_t edits = random.between(1, 4); edits > 0; --edits) {
            const auto at =
                static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(text.size()) - 1));
            switch (random.between(0, 3)) {
                case 0:
                    text[at] = static_cast<char>(random.between(0, 255));
                    break;
                case 1:
                    text.erase(at, static_cast<std::size_t>(random.between(1, 20)));
                    break;
                case 2:
                    text.insert(at, pieces[random.between(0, std::ssize(pieces) - 1)]);
                    break;
                default:
                    text.insert(at, text.substr(text.size() / 2, 20));
                    break;
            }
            if (text.empty()) text = "{";
        }
        try {
            (void)to_json(parse_request(text));
            ++accepted;
        } catch (const Error&) {
            ++refusals;
        }
    }
    // Both happen: a digit may become another one, and a bracket may go missing.
    CHECK(accepted > 100);
    CHECK(refusals > 50000);
    CHECK(accepted + refusals == 100000);
}

// ---- the table of fields ----

TEST_CASE("each field is in the normalised JSON, in the table's order", "[request][fields]") {
    const auto json = nlohmann::ordered_json::parse(to_json(parse_request(kGood)));
    std::vector<std::string> written;
    for (const auto& item : json.items()) written.push_back(item.key());
    std::vector<std::string> listed;
    for (const RequestField& field : request_fields()) {
        CHECK(find_field(field.name) == &field);
        CHECK_FALSE(field.help.empty());
        CHECK((field.type == FieldType::word) == (field.words != nullptr));
        if (field.name != "head_dim" && counts(field.name, Op::attention)) listed.emplace_back(field.name);
    }
    CHECK(written == listed);
    CHECK(find_field("nothing") == nullptr);
}

namespace {

using Flags = std::vector<std::pair<std::string, std::string>>;

AttentionRequest from_flags(const Flags& flags) {
    nlohmann::json object = nlohmann::json::object();
    for (const auto& [name, text] : flags) object[name] = flag_value(*find_field(name), text);
    return request_from_json(object);
}

}  // namespace

TEST_CASE("flags say what JSON says", "[request][fields]") {
    CHECK(from_flags({{"head_dim", "64"},
                      {"q_heads", "8"},
                      {"mask", "causal"},
                      {"scale", "0.25"},
                      {"softcap", "30"},
                      {"lse", ""},
                      {"sink", "true"},
                      {"alibi", "false"},
                      {"kv", "paged"},
                      {"page_size", "16"},
                      {"sm", "80,90a"},
                      {"dtype", "fp16"},
                      {"window_left", "127"}}) ==
          parse_request(
              R"({"head_dim": 64, "q_heads": 8, "mask": "causal", "scale": 0.25, "softcap": 30, "lse": true,
                            "sink": true, "alibi": false, "kv": "paged", "page_size": 16, "sm": [80, 90],
                            "dtype": "fp16", "window_left": 127})"));
}

TEST_CASE("bad flags are refused by the field", "[request][fields]") {
    const Flags cases[] = {
        {{"q_heads", "abc"}},
        {{"q_heads", ""}},
        {{"q_heads", "0x10"}},
        {{"q_heads", "+8"}},
        {{"q_heads", "8.0"}},
        {{"q_heads", " 8"}},
        {{"q_heads", "8 "}},
        {{"q_heads", "null"}},
        {{"q_heads", "[8]"}},
        {{"q_heads", "1e1"}},
        {{"q_heads", "08"}},
        {{"q_heads", "-"}},
        {{"q_heads", "99999999999999999999"}},
        {{"q_heads", "18446744073709551615"}},
        {{"scale", "nan"}},
        {{"scale", "inf"}},
        {{"scale", "1e999"}},
        {{"scale", ""}},
        {{"lse", "yes"}},
        {{"lse", "1"}},
        {{"mask", ""}},
        {{"sm", "80 90"}},
        {{"window_left", "null"}},  // a bound is left out by leaving out the flag
    };
    for (const Flags& bad : cases) {
        Flags flags = {{"head_dim", "64"}};
        if (bad[0].first != "q_heads") flags.emplace_back("q_heads", "8");
        flags.push_back(bad[0]);
        INFO(bad[0].first << " " << bad[0].second);
        CHECK(refused([&] { from_flags(flags); }).field() == bad[0].first);
    }
}

TEST_CASE("JSON may be nested to a depth that no request has", "[problem]") {
    constexpr int kMost = 32;
    const auto nested = [](int depth) {
        // As the value of a field that there is not, which is found once the text has been read.
        const std::string open(static_cast<std::size_t>(depth - 1), '['), close(open.size(), ']');
        return refused([&] { (void)parse_request("{\"nothing\": " + open + close + "}"); });
    };
    CHECK(nested(kMost).field() == "nothing");
    CHECK(nested(kMost).value() != "JSON nested too deeply");
    CHECK(nested(kMost + 1).value() == "JSON nested too deeply");
}
