#include "problem/vocabulary.hpp"

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "expect.hpp"
#include "problem/compute_capability.hpp"

using namespace attnsmith;
using namespace attnsmith::problem;
using attnsmith::test::contains;
using attnsmith::test::refused;

TEST_CASE("enumerators have the spellings of the design", "[vocabulary]") {
    CHECK(to_string(DType::fp16) == "fp16");
    CHECK(to_string(DType::bf16) == "bf16");
    CHECK(to_string(DType::fp32) == "fp32");
    CHECK(to_string(DType::int32) == "int32");
    CHECK(to_string(DType::int64) == "int64");
    CHECK(to_string(Mask::full) == "full");
    CHECK(to_string(Mask::causal) == "causal");
    CHECK(to_string(KvStorage::dense) == "dense");
    CHECK(to_string(KvStorage::ragged) == "ragged");
    CHECK(to_string(KvStorage::paged) == "paged");
    CHECK(to_string(PageOrder::NHD) == "NHD");
    CHECK(to_string(PageOrder::HND) == "HND");
    CHECK(to_string(Precision::standard) == "standard");
    CHECK(to_string(Precision::high) == "high");
    CHECK(to_string(Consistency::standard) == "standard");
    CHECK(to_string(Consistency::bitwise) == "bitwise");
    CHECK(to_string(Op::mla) == "mla");
    CHECK(to_string(static_cast<Mask>(77)) == "(not an enumerator)");
}

TEST_CASE("words and aliases are read", "[vocabulary]") {
    for (const char* word : {"fp16", "f16", "float16", "half"})
        CHECK(kFloatDTypeWords.parse("dtype", word) == DType::fp16);
    for (const char* word : {"bf16", "bfloat16"}) CHECK(kFloatDTypeWords.parse("dtype", word) == DType::bf16);
    for (const char* word : {"int32", "i32"})
        CHECK(kIndexDTypeWords.parse("index_dtype", word) == DType::int32);
    for (const char* word : {"int64", "i64"})
        CHECK(kIndexDTypeWords.parse("index_dtype", word) == DType::int64);
    for (const char* word : {"full", "none"}) CHECK(kMaskWords.parse("mask", word) == Mask::full);
    for (const char* word : {"NHD", "nhd"})
        CHECK(kPageOrderWords.parse("page_order", word) == PageOrder::NHD);
    for (const char* word : {"standard", "default"}) {
        CHECK(kConsistencyWords.parse("consistency", word) == Consistency::standard);
        CHECK(kPrecisionWords.parse("precision", word) == Precision::standard);
    }
    CHECK(kOpWords.parse("op", "append") == Op::append);
    CHECK(kOpWords.parse("op", "top_k") == Op::top_k);
}

TEST_CASE("each canonical word reads back as what wrote it", "[vocabulary]") {
    const auto check = [](const auto& words) {
        REQUIRE(words.names().size() >= 2);
        for (const auto word : words.names()) CHECK(to_string(words.parse("f", word)) == word);
    };
    check(kOpWords);
    check(kFloatDTypeWords);
    check(kOutputDTypeWords);
    check(kIndexDTypeWords);
    check(kMaskWords);
    check(kKvStorageWords);
    check(kPageOrderWords);
    check(kPrecisionWords);
    check(kConsistencyWords);
    check(kKvDTypeWords);
    check(kKvScaleWords);
    check(kSlotsWords);
    check(kRopeWords);
    check(kRopeTableWords);
    check(kLogLevelWords);
    check(kCacheTrustWords);
    check(kToolchainWords);
    check(kOnMissWords);
    check(kWarningKindWords);
    check(kErrorKindWords);
}

TEST_CASE("from_string gives the enumerator of each word and alias, and nothing for another",
          "[vocabulary]") {
    const auto check = []<class Enumeration>(const WordList<Enumeration>& list) {
        for (const Word<Enumeration>& word : list.words) {
            INFO(word.name);
            CHECK(from_string<Enumeration>(word.name) == word.value);
        }
        for (const char* word : {"", "zzz", "ALL"}) CHECK_FALSE(from_string<Enumeration>(word));
    };
    check(kOpWords);
    check(kDTypeWords);
    check(kMaskWords);
    check(kKvStorageWords);
    check(kPageOrderWords);
    check(kPrecisionWords);
    check(kConsistencyWords);
    check(kKvScaleWords);
    check(kSlotsWords);
    check(kRopeWords);
    check(kRopeTableWords);
    check(kLogLevelWords);
    check(kCacheTrustWords);
    check(kToolchainWords);
    check(kOnMissWords);
    check(kWarningKindWords);
    check(kErrorKindWords);
    CHECK(from_string<DType>("float16") == DType::fp16);
    CHECK(from_string<Precision>("default") == Precision::standard);
}

TEST_CASE("a word that is none of the list is refused with the list", "[vocabulary]") {
    const InvalidRequest dtype = refused([] { kFloatDTypeWords.parse("dtype", "bf17"); });
    CHECK(dtype.field() == "dtype");
    CHECK(dtype.value() == "\"bf17\"");
    CHECK(dtype.accepted() == "fp16 or bf16 (did you mean bf16?)");
    CHECK(refused([] { kFloatDTypeWords.parse("dtype", "int32"); }).accepted() == "fp16 or bf16");
    for (const char* word : {"fp32", "f32", "float32", "fp8", "e5m2"})
        CHECK_THROWS_AS(kFloatDTypeWords.parse("dtype", word), Unsupported);
    CHECK(refused([] { kIndexDTypeWords.parse("index_dtype", "fp16"); }).accepted() == "int32 or int64");
    CHECK(refused([] { kMaskWords.parse("mask", "Causal"); }).accepted() ==
          "full or causal (did you mean causal?)");
    CHECK(refused([] { kMaskWords.parse("mask", "casual"); }).accepted() ==
          "full or causal (did you mean causal?)");
    CHECK(refused([] { kMaskWords.parse("mask", "usual"); }).accepted() == "full or causal");
    CHECK(refused([] { kFloatDTypeWords.parse("dtype", "fp64"); }).accepted() == "fp16 or bf16");
    CHECK(refused([] { kIndexDTypeWords.parse("index_dtype", "int8"); }).accepted() == "int32 or int64");
    CHECK(refused([] { kKvStorageWords.parse("kv", "pagde"); }).accepted() ==
          "dense, ragged or paged (did you mean paged?)");
    CHECK(refused([] { kKvStorageWords.parse("kv", "zzzzzz"); }).accepted() == "dense, ragged or paged");
    CHECK(refused([] { kKvStorageWords.parse("kv", ""); }).value() == "\"\"");
}

TEST_CASE("values in messages are one short line of ASCII", "[vocabulary]") {
    CHECK(quote("a\nb\"c") == "\"a\\nb\\\"c\"");
    CHECK(quote(std::string(1000, 'x')).size() < 80);
    for (const std::string& text : {std::string("\xff\xfe\x00 mixed", 9), std::string("caf\xc3\xa9"),
                                    std::string(59, 'x') + "\xe2\x82\xac"}) {
        const std::string line = quote(text);
        CHECK(std::ranges::all_of(line, [](char c) { return c >= ' ' && c <= '~'; }));
    }
}

TEST_CASE("compute capabilities", "[vocabulary]") {
    const std::vector<int> sms(known_sms().begin(), known_sms().end());
    // What is promised: the one list that stands beside the library's.
    CHECK(sms == std::vector<int>{80, 86, 87, 89, 90, 100, 103, 110, 120, 121});
    CHECK(known_sms_text() == "80, 86, 87, 89, 90, 100, 103, 110, 120, 121");
    for (const int sm : sms) {
        CHECK(check_sm("sm", sm) == sm);
        CHECK(parse_sm("sm", std::to_string(sm)).sm == sm);
        const std::string capability = std::to_string(sm / 10) + "." + std::to_string(sm % 10);
        for (const std::string& text : {"sm_" + std::to_string(sm), "sm" + std::to_string(sm), capability}) {
            INFO(text);
            CHECK(parse_sm("sm", text).sm == sm);
            CHECK(parse_sm("sm", text).unused.empty());
        }
    }
    CHECK(parse_sm("sm", "90a").sm == 90);
    CHECK(parse_sm("sm", "sm_120a").sm == 120);
    CHECK(parse_sm("sm", "9.0a").unused.empty());
    // Taken, and told of.
    for (const auto& [text, sm, unused] :
         {std::tuple{"100f", 100, "f"}, {"90f", 90, "f"}, {"sm_90b", 90, "b"}, {"80a", 80, "a"}}) {
        INFO(text);
        CHECK(parse_sm("sm", text).sm == sm);
        CHECK(parse_sm("sm", text).unused == unused);
    }
    for (const char* text :
         {"",     "a",    "90aa", " 90",    "90 ", "sm_",    "sm_a",       "sm-90",
          "9.",   "9.00", "9.x",  "90.0",   "99",  "-90",    "+90",        "0x50",
          "09.0", "090",  "90A",  "sm_090", "all", "native", "compute_90", "99999999999999999999",
          "090b"}) {
        INFO(text);
        const InvalidRequest error = refused([&] { parse_sm("sm", text); });
        CHECK(error.field() == "sm");
        CHECK(contains(error.accepted(), known_sms_text()));
    }
    for (const std::int64_t sm : {0LL, -90LL, 85LL, 91LL, 4294967386LL}) {  // 2^32 + 90 is not 90
        CHECK(refused([&] { check_sm("sm", sm); }).value() == std::to_string(sm));
    }
}

TEST_CASE("the nearest name is the one at the least edit distance", "[vocabulary]") {
    const std::vector<std::string_view> names = {"head_dim", "head_dim_qk", "q_heads",
                                                 "kv_heads", "page_size",   "kv"};
    CHECK(nearest_name("pagesize", names) == "page_size");
    CHECK(nearest_name("page-size", names) == "page_size");
    CHECK(nearest_name("head_dmi", names) == "head_dim");
    CHECK(nearest_name("kv_head", names) == "kv_heads");
    CHECK(nearest_name("num_kv_heads", names) == "kv_heads");
    CHECK(nearest_name("vk", names) == "kv");
    CHECK(nearest_name("page_size", names) == "page_size");
    CHECK(nearest_name("temperature", names).empty());
    CHECK(nearest_name("", names).empty());
    CHECK(nearest_name(std::string(1 << 20, 'p'), names).empty());
    CHECK(nearest_name("kv", {}).empty());
}

TEST_CASE("lists in words", "[vocabulary]") {
    CHECK(join_or({}).empty());
    CHECK(join_or(std::vector<std::string_view>{"a"}) == "a");
    CHECK(join_or(std::vector<std::string_view>{"a", "b"}) == "a or b");
    CHECK(join_or(std::vector<std::string_view>{"a", "b", "c"}) == "a, b or c");
}
