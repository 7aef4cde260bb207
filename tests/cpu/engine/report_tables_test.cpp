// Reports are printed by the tables of their fields.
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "attnsmith/attnsmith.hpp"
#include "problem/report/json.hpp"
#include "reports/report_json.hpp"
#include "support/catch.hpp"

namespace attnsmith::problem {
namespace {

struct Inner {
    std::string text{};
    int number = 0;
};

struct Sample {
    std::string name{};
    std::optional<int> limit{};
    std::vector<Inner> list{};
    std::optional<Inner> inner{};
    double part = 0;
    Inner nested{};
    std::chrono::system_clock::time_point time{};
};

struct Pair {
    int a = 1, b = 2;
};

int sum_of(const Pair& pair) { return pair.a + pair.b; }

}  // namespace

template <>
struct ReportTable<Pair> {
    static constexpr auto fields = std::tuple(group("inner", field("a", &Pair::a)), field("b", &Pair::b));
};

namespace {

// As names_every_member() counts, of a table of Pair.
template <class Fields>
consteval bool names_both(const Fields& fields) {
    constexpr std::size_t members = member_count<Pair>();
    const auto pointers = members_of(fields);
    const bool once = std::apply(
        [&](auto... pointer) { return (true && ... && (count_of(pointers, pointer) == 1)); }, pointers);
    return once && std::tuple_size_v<decltype(members_of(fields))> == members;
}

}  // namespace
}  // namespace attnsmith::problem

using namespace attnsmith;
using nlohmann::ordered_json;

TEST_CASE("the members of an aggregate are counted, whatever their types", "[reports]") {
    STATIC_REQUIRE(problem::member_count<problem::Inner>() == 2);
    STATIC_REQUIRE(problem::member_count<problem::Sample>() == 7);
    STATIC_REQUIRE(problem::member_count<CacheCounters>() == 15);
}

TEST_CASE("a table that lacks a member, or has one twice, is found at compile time", "[reports]") {
    using problem::Pair, problem::field, problem::names_both;
    STATIC_REQUIRE(problem::names_every_member<Pair>());
    STATIC_REQUIRE(names_both(std::tuple(field("a", &Pair::a), field("b", &Pair::b))));
    STATIC_REQUIRE(!names_both(std::tuple(field("a", &Pair::a))));
    STATIC_REQUIRE(!names_both(std::tuple(field("a", &Pair::a), field("also a", &Pair::a))));
    STATIC_REQUIRE(names_both(std::tuple(problem::computed("sum", problem::sum_of, {}, &Pair::a, &Pair::b))));
    STATIC_REQUIRE(!names_both(std::tuple(problem::computed("sum", problem::sum_of), field("b", &Pair::b))));
}

TEST_CASE("the fields of a report are in the order of its table", "[reports]") {
    CHECK(problem::json_of(problem::Pair{}).dump() == R"({"inner":{"a":1},"b":2})");
    const PrewarmedKernel kernel{.name = "n",
                                 .sm = 90,
                                 .key = "k",
                                 .state = PrewarmState::failed,
                                 .error = "e\xff",
                                 .milliseconds = 1.5,
                                 .cubin_bytes = 0,
                                 .directory = {}};
    CHECK(to_json(kernel) ==
          "{\"name\":\"n\",\"sm\":90,\"key\":\"k\",\"state\":\"failed\",\"ms\":1.5,\"cubin_bytes\":0,"
          "\"error\":\"e\xef\xbf\xbd\"}");
}

TEST_CASE("what is absent is null or left out, as the table says", "[reports]") {
    const auto gc = ordered_json::parse(to_json(CacheGcReport{.directory = "/d"}));
    CHECK(gc.at("max_bytes").is_null());
    CHECK(!gc.contains("kept_entries"));
    CHECK(ordered_json::parse(to_json(CacheGcReport{.kept = CacheKept{3, 4}})).at("kept_entries") == 3);
    const auto stat = ordered_json::parse(to_json(CacheStatistics{}));
    CHECK(stat.at("max_bytes").is_null());
    CHECK(stat.at("counters").at("since").is_null());
    const auto bundle = ordered_json::parse(to_json(CacheExportReport{.file = "f"}));
    CHECK(!bundle.contains("signed_by"));
    CHECK(bundle.at("unsupported").empty());
}

TEST_CASE("a refusal is printed by its name or its place, and without an SM where it is of all",
          "[reports]") {
    PrewarmReport report;
    report.unsupported = {{.spec = 0, .sm = 80, .name = {}, .reason = "r"},
                          {.spec = {}, .sm = 0, .name = "layer", .reason = "s"}};
    const auto json = ordered_json::parse(to_json(report));
    CHECK(json.at("unsupported").dump() ==
          R"([{"spec":0,"reason":"r","sm":80},{"name":"layer","reason":"s"}])");
    CHECK(json.at("summary").at("unsupported") == 2);
    CHECK(json.at("summary").at("ok") == false);
}

TEST_CASE("a pull is a prewarm without what only a compiling one counts", "[reports]") {
    const PrewarmReport report{.total = 2, .remote = 2, .seconds = 0.5};
    auto whole = ordered_json::parse(to_json(report));
    const auto pull = ordered_json::parse(engine::pull_json(report));
    CHECK(pull.at("schema") == "attnsmith.cache-pull/1");
    whole["schema"] = pull.at("schema");
    whole["summary"].erase("compiled");
    whole["summary"].erase("pushed");
    CHECK(pull == whole);
}

TEST_CASE("an explained entry has its fault among its own fields", "[reports]") {
    CacheExplanation one{.name = "n", .sm = 90, .key = "k", .hit = true};
    one.entries = {{.entry = {.key = "k", .path = "/p"}, .fault = "torn"}};
    const auto json = ordered_json::parse(to_json(CacheExplanations{.kernels = {one}})).at("kernels").at(0);
    CHECK(json.at("state") == "hit");
    CHECK(json.at("entries").at(0).at("path") == "/p");
    CHECK(json.at("entries").at(0).at("fault") == "torn");
    CHECK(!json.contains("nearest"));
}

TEST_CASE("every state of a kernel and of an entry has its word", "[reports]") {
    std::string words;
    for (int number = 0; number <= 8; ++number)
        words += std::string(to_string(static_cast<PrewarmState>(number))) + " ";
    CHECK(words ==
          "(not an enumerator) hit remote compiled waited missing failed cancelled "
          "(not an enumerator) ");
    words.clear();
    for (int number = 1; number <= 5; ++number)
        words += std::string(to_string(static_cast<PushState>(number))) + " ";
    CHECK(words == "pushed present failed cancelled gone ");
}
