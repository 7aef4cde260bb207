// Lines that programs record, and files of such lines.
#include "problem/request/recorded.hpp"

#include <ctime>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "attnsmith/coverage.hpp"
#include "problem/expect.hpp"
#include "problem/request/request_fields.hpp"

using namespace attnsmith;
using test::contains;
using test::refused;

namespace {

problem::Problem problem_of(const char* request) {
    const AttentionRequest parsed = parse_request(request);
    return problem::validate(parsed.spec, parsed.sizes);
}

const std::string kDense = problem::recorded_line(problem_of(R"({"head_dim": 64, "q_heads": 8})"));
const std::string kMerge =
    problem::recorded_line(problem_of(R"({"op": "merge", "head_dim": 64, "q_heads": 8})"));

std::vector<SkippedPart> torn(std::initializer_list<int> lines) {
    std::vector<SkippedPart> skipped;
    for (int line : lines)
        skipped.push_back(
            {"f:" + std::to_string(line), "the line is torn: the program that wrote it ended there"});
    return skipped;
}

// What the command line makes of flags.
AttentionSpec spec_of_flags(const std::string& flags) {
    auto object = nlohmann::json::object();
    std::istringstream words(flags);
    std::string name;
    for (std::string word; words >> word;) {
        if (word.starts_with("--")) {
            name = word.substr(2);
            std::replace(name.begin(), name.end(), '-', '_');
            REQUIRE(problem::find_field(name) != nullptr);
            object[name] = true;
        } else {
            object[name] = problem::flag_value(*problem::find_field(name), word);
        }
    }
    return problem::request_from_json(object).spec;
}

std::vector<problem::Problem> many_problems() {
    std::vector<problem::Problem> problems;
    std::mt19937 random(7);
    const auto some = [&] { return random() % 2 == 0; };
    for (int i = 0; i < 300; ++i) {
        AttentionSpec spec{.head_dim_qk = 64, .q_heads = 8};
        if (some()) spec.dtype = DType::fp16;
        if (some()) spec.lse = true;
        if (some()) spec.alignment = 4;
        if (i % 10 == 0) {
            spec.op = Op::merge;
            spec.head_dim_qk = 0, spec.head_dim_vo = 96;
            problems.push_back(problem::validate(spec, {3, 5, 7}));
            continue;
        }
        if (some()) spec.head_dim_vo = 128;
        if (some()) spec.kv_heads = 2;
        if (some()) spec.mask = Mask::causal;
        if (some()) spec.window_left = static_cast<std::int64_t>(random() % 5000);
        if (spec.mask == Mask::full && some()) spec.window_right = 3;
        if (some()) spec.scale = 1.0 / static_cast<double>(1 + random() % 1000);
        if (some()) spec.softcap = 30.1;
        spec.alibi = some(), spec.sink = some();
        if (some()) spec.kv = KvStorage::ragged;
        if (some())
            spec.kv = KvStorage::paged, spec.page_size = 24,
            spec.page_order = some() ? PageOrder::HND : PageOrder::NHD;
        if (some()) spec.index_dtype = DType::int64;
        if (some()) spec.o_dtype = DType::fp32;
        if (spec.head_dim_qk % 16 == 0 && spec.head_dim_vo % 16 == 0 && some())
            spec.kv_dtype = DType::e4m3, spec.kv_scale = some() ? KvScale::head : KvScale::token_head;
        if (some()) spec.precision = Precision::high;
        if (some()) spec.consistency = Consistency::bitwise;
        problems.push_back(problem::validate(spec, {3, 5, 7}));
    }
    return problems;
}

}  // namespace

TEST_CASE("A line is one JSON object without sizes and sm, and reads as its spec") {
    for (const problem::Problem& problem : many_problems()) {
        const std::string line = problem::recorded_line(problem);
        REQUIRE(line.find('\n') == line.size() - 1);
        const auto json = nlohmann::json::parse(line);
        REQUIRE(json["schema"] == "attnsmith.recorded/1");
        for (const char* name : {"batch", "q_len", "kv_len", "sm"})
            REQUIRE_FALSE(json["request"].contains(name));
        REQUIRE(parse_request(json["request"].dump()).spec == problem.spec);
        REQUIRE(json.size() == 2);
        REQUIRE(recorded_coverage(line, "f").specs() == std::vector{problem.spec});
    }
}

TEST_CASE("The flags of a spec ask for it again") {
    for (const problem::Problem& problem : many_problems()) {
        const std::string flags = problem::request_flags(problem);
        CAPTURE(flags);
        REQUIRE(spec_of_flags(flags) == problem.spec);
    }
    CHECK(
        problem::request_flags(problem_of(
            R"({"head_dim": 128, "q_heads": 32, "kv_heads": 8, "mask": "causal", "lse": true, "batch": 5})")) ==
        "--head-dim 128 --q-heads 32 --kv-heads 8 --mask causal --lse");
    CHECK(problem::request_flags(problem_of(R"({"op": "merge", "head_dim": 64, "q_heads": 8})")) ==
          "--head-dim 64 --op merge --q-heads 8");
}

TEST_CASE("Specs that stand twice are there once, named by their first line") {
    const Coverage coverage = recorded_coverage(kDense + kMerge + "\n" + kDense + "\r\n" + kMerge, "f");
    REQUIRE(coverage.attentions.size() == 2);
    CHECK(coverage.attentions[0].name == "f:1");
    CHECK(coverage.attentions[1].name == "f:2");
    CHECK(coverage.attentions[1].request.spec.op == Op::merge);
    CHECK(coverage.skipped.empty());
}

TEST_CASE("Torn lines are said and skipped, wherever they were cut") {
    const std::string line = kMerge.substr(0, kMerge.size() - 1);
    for (std::size_t length = 1; length < line.size(); ++length) {
        const std::string part = line.substr(0, length);
        CAPTURE(part);
        const Coverage at_end = recorded_coverage(kDense + part, "f");
        CHECK(at_end.skipped == torn({2}));
        CHECK(at_end.specs().size() == 1);
        const Coverage within = recorded_coverage(part + "\n" + kDense, "f");
        CHECK(within.skipped == torn({1}));
        CHECK(within.specs().size() == 1);
    }
    // Somebody's line was appended to a torn one.
    const Coverage joined = recorded_coverage(line.substr(0, 90) + kDense, "f");
    CHECK(joined.skipped == torn({1}));
    CHECK(joined.specs() == recorded_coverage(kDense, "f").specs());
}

TEST_CASE("Several records on one line are all taken, and any end of a line is one") {
    const std::string dense = kDense.substr(0, kDense.size() - 1),
                      merge = kMerge.substr(0, kMerge.size() - 1);
    const auto compact = [](std::string line) {
        std::erase(line, ' ');
        return line;
    };
    for (const std::string& text :
         {dense + merge, dense + merge + "\n", dense + " " + merge + " \n", compact(dense) + compact(merge),
          compact(dense) + compact(merge) + "\n", dense + "\r" + merge, dense + "\r" + merge + "\r",
          dense + "\r\n" + merge + "\r\n"}) {
        CAPTURE(text);
        const Coverage both = recorded_coverage(text, "f");
        CHECK(both.specs().size() == 2);
        CHECK(both.skipped.empty());
    }
    CHECK(recorded_coverage(dense + "\r" + merge, "f").attentions[1].name == "f:2");
    CHECK(recorded_coverage(dense + "\r\n" + merge + "\r\n", "f").attentions[1].name == "f:2");
    const Coverage torn_between = recorded_coverage(dense + merge.substr(0, 70) + merge + "\n", "f");
    CHECK(torn_between.specs().size() == 2);
    CHECK(torn_between.skipped == torn({1}));
    // What is no record is not called torn.
    const InvalidRequest error = refused([&] { (void)recorded_coverage(dense + "{}\n", "f"); });
    CHECK(error.field() == "f:1: schema");
    CHECK_THROWS_AS(recorded_coverage(dense + "text\n", "f"), InvalidRequest);
    // Neither is it where a record follows, on a last line without an end too.
    for (const char* end : {"", "\n"}) {
        CHECK_THROWS_AS(recorded_coverage("{\"head_dim\": 64, " + dense + end, "f"), InvalidRequest);
        CHECK_THROWS_AS(recorded_coverage(dense + "{\"head_dim\": 64, " + merge + end, "f"), InvalidRequest);
    }
    const Coverage at_end = recorded_coverage(dense + "{\"head_dim\": 64, ", "f");
    CHECK(at_end.specs().size() == 1);
    CHECK(at_end.skipped == torn({1}));
}

TEST_CASE("Tens of thousands of records are added in no more time than they take to read") {
    constexpr int kRecords = 30000;
    Coverage records;
    for (int i = 1; i <= kRecords; ++i) {
        ModelAttention& one = records.attentions.emplace_back();
        one.name = "f:" + std::to_string(i);
        one.request.spec = {.head_dim_qk = 64, .head_dim_vo = 64, .q_heads = i, .kv_heads = i};
    }
    // By the processor's time, of which other programs take none; looking through the list took a hundred
    // times as much.
    const std::clock_t begin = std::clock();
    Coverage all;
    all.add(records);
    all.add(records);
    CHECK(all.attentions.size() == kRecords);
    CHECK(all.specs().size() == kRecords);
    CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < 2);
}

TEST_CASE("What is no recorded file is refused by its line") {
    const auto field = [](const std::string& text) {
        return refused([&] { (void)recorded_coverage(text, "f"); }).field();
    };
    CHECK(field("") == "f");
    CHECK(field("\n\n") == "f");
    CHECK(field(kDense.substr(0, 20)) == "f");  // torn, and nothing else
    CHECK(contains(field("#!/bin/sh\n"), "f:1: "));
    CHECK(contains(field(kDense + "[]\n"), "f:2: "));
    CHECK(field(kDense + "{}\n") == "f:2: schema");
    CHECK(field(R"({"schema": "attnsmith.recorded/2", "request": {}})") == "f:1: schema");
    CHECK(field(R"({"schema": "attnsmith.recorded/1"})") == "f:1: request");
    CHECK(field(R"({"schema": "attnsmith.recorded/1", "request": []})") == "f:1: request");
    CHECK(field(R"({"schema": "attnsmith.recorded/1", "request": {"head_dim": 64, "q_heads": 8}, "x": 1})") ==
          "f:1: x");
    CHECK(field(R"({"schema": "attnsmith.recorded/1", "request": {"head_dim": -8, "q_heads": 8}})") ==
          "f:1: head_dim");
    CHECK(
        field(R"({"schema": "attnsmith.recorded/1", "request": {"head_dim": 64, "q_heads": 8, "sm": 90}})") ==
        "f:1: sm");
    CHECK(
        field(
            R"({"schema": "attnsmith.recorded/1", "request": {"head_dim": 64, "q_heads": 8, "kv_len": 9}})") ==
        "f:1: kv_len");
    CHECK(
        field(
            R"({"schema": "attnsmith.recorded/1", "request": {"head_dim": 64, "q_heads": 8, "kv": ["dense"]}})") ==
        "f:1: kv");
}

TEST_CASE("A record of what is not built is listed, though there be no other") {
    const Coverage covered = recorded_coverage(
        R"({"schema": "attnsmith.recorded/1", "request": {"head_dim": 63, "q_heads": 8}})", "f");
    CHECK(covered.attentions.empty());
    REQUIRE(covered.unsupported.size() == 1);
    CHECK(covered.unsupported.front().name == "f:1");
    CHECK(contains(covered.unsupported.front().reason, "63"));
}

TEST_CASE("A name in the place of the lines is refused with what goes there") {
    const InvalidRequest error = refused([&] { (void)recorded_coverage("staging.jsonl", kDense); });
    CHECK(error.field() == "lines");
    CHECK(contains(error.accepted(), "the second argument"));
    // A file without records is refused by its name.
    CHECK(refused([&] { (void)recorded_coverage("", "f"); }).field() == "f");
}

TEST_CASE("NUL bytes in a file's lines are skipped and said") {
    const std::string nuls(5000, '\0');
    for (const std::string& text :
         {kDense + nuls + "\n" + kMerge, kDense + nuls + kMerge, kDense + kMerge + nuls,
          kDense + kMerge.substr(0, 40) + nuls + "\n" + kMerge}) {
        const Coverage coverage = recorded_coverage(text, "f");
        CHECK(coverage.specs().size() == 2);
        REQUIRE(coverage.skipped.size() == 1);
        CHECK(contains(coverage.skipped[0].reason, "NUL bytes"));
    }
    CHECK(refused([&] { (void)recorded_coverage(nuls, "f"); }).field() == "f");
}

TEST_CASE("A last line that nobody ended is torn, whoever wrote it") {
    const Coverage covered = recorded_coverage(kDense + R"({"schema":"attnsmith.recorded/1","requ)", "f");
    CHECK(covered.specs().size() == 1);
    CHECK(covered.skipped.size() == 1);
}
