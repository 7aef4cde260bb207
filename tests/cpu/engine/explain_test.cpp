// What `attnsmith cache explain` says of a hit and of a miss.
#include "reports/explain.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"
#include "reports/kernel_list.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using engine::Explanation;
using engine::KernelEntry;

namespace {

engine::Cubins cubins_without_cache() {
    const engine::Settings settings = engine::settle({.use_cache = false});
    return {settings, std::make_shared<const engine::Log>(LogLevel::off, settings.log)};
}

families::KernelConfig merge_of(std::int64_t head_dim, DType dtype = DType::bf16) {
    return planner::kernel_set(
               problem::validate({.op = Op::merge, .dtype = dtype, .head_dim_vo = head_dim, .q_heads = 1}, {})
                   .spec,
               90, planner::repository_tuning())
        .kernels()
        .front();
}

KernelEntry entry_of(const engine::KernelSource& source, const nlohmann::json& fields) {
    KernelEntry kernel{.entry = {}, .name = source.kernel.name(), .target = source.kernel.target};
    kernel.entry.key = source.key;
    kernel.entry.version = *cache::Version::parse("13.0.88");
    kernel.entry.path = "kernels/" + source.key.hex();
    kernel.entry.metadata = nlohmann::json{{"key_fields", fields}}.dump();
    kernel.sm = source.kernel.sm;
    return kernel;
}

KernelEntry entry_of(const engine::KernelSource& source) {
    return entry_of(source, nlohmann::json::parse(source.fields_json));
}

std::vector<std::string> labels(const std::vector<engine::FieldDifference>& differences) {
    std::vector<std::string> all;
    for (const auto& difference : differences) all.push_back(difference.label);
    return all;
}

engine::Explanation explain(const engine::KernelSource& source, const std::vector<KernelEntry>& stored) {
    const auto explanations = engine::explain(std::span(&source, 1), stored);
    REQUIRE(explanations.size() == 1);
    return explanations.front();
}

}  // namespace

TEST_CASE("a hit is explained by its entries and fields", "[engine][explain]") {
    const auto cubins = cubins_without_cache();
    const auto source = cubins.source_of(merge_of(128));
    const std::vector<KernelEntry> stored = {entry_of(cubins.source_of(merge_of(64))), entry_of(source)};
    const Explanation one = explain(source, stored);
    CHECK(one.key == source.key);
    REQUIRE(one.entries.size() == 1);
    CHECK(one.entries[0].entry.path == stored[1].entry.path);
    CHECK(!one.nearest);
    const auto has = [&](const std::string& label, const std::string& value) {
        return std::ranges::find(one.fields, engine::KeyField{label, value}) != one.fields.end();
    };
    CHECK(has("target", "sm_90"));
    CHECK(has("constant head_dim_vo", "128"));
    CHECK(has("constant Output", "bf16"));
    const auto by_key = engine::explain(source.key, stored);
    REQUIRE(by_key);
    CHECK(by_key->name == one.name);
    CHECK(by_key->fields == one.fields);
    CHECK(!engine::explain(cache::Digest(1, 2), stored));
}

TEST_CASE("a key may be told by its first digits, in either case", "[engine][explain]") {
    const auto cubins = cubins_without_cache();
    const auto stored_under = [&](const cache::Digest& key) {
        KernelEntry kernel = entry_of(cubins.source_of(merge_of(128)));
        kernel.entry.key = key;
        return kernel;
    };
    const cache::Digest first(0xabcd000000000000, 1), second(0xabcd100000000000, 2);
    engine::KernelList stored{.kernels = {stored_under(first), stored_under(first), stored_under(second)},
                              .unreadable = {}};
    CHECK(engine::explain_key(cache::Store({}), first.hex(), stored).key == first);
    CHECK(engine::explain_key(cache::Store({}), "abcd1", stored).key == second);
    CHECK(engine::explain_key(cache::Store({}), "ABCD0", stored).entries.size() == 2);
    CHECK_THROWS_WITH(engine::explain_key(cache::Store({}), "abcd", stored),
                      Catch::Contains("2 keys begin with abcd: " + first.hex() + ", " + second.hex()));
    CHECK_THROWS_WITH(engine::explain_key(cache::Store({}), "abce", stored),
                      Catch::Contains("no entry has the key abce"));
    for (const std::string wrong : {"", "abc", "abcx", "abcd\n"}) {
        CHECK_THROWS_AS(engine::explain_key(cache::Store({}), wrong, stored), InvalidRequest);
    }
    CHECK_THROWS_AS(engine::explain_key(cache::Store({}), first.hex() + "0", stored), InvalidRequest);
    stored.unreadable.push_back(cache::Status::from_errno(EACCES, "open", "/shard"));
    CHECK_THROWS_WITH(engine::explain_key(cache::Store({}), "abce", stored), Catch::Contains("/shard"));
}

TEST_CASE("a miss is explained by what the nearest entry has otherwise", "[engine][explain]") {
    const auto cubins = cubins_without_cache();
    const auto source = cubins.source_of(merge_of(128));
    const auto other_dim = cubins.source_of(merge_of(64));
    const auto other_both = cubins.source_of(merge_of(64, DType::fp16));
    const Explanation one = explain(source, {entry_of(other_both), entry_of(other_dim)});
    CHECK(one.entries.empty());
    REQUIRE(one.nearest);
    CHECK(one.nearest->kernel.entry.key == other_dim.key);
    const auto different = labels(one.nearest->differences);
    CHECK(std::ranges::find(different, "constant head_dim_vo") != different.end());
    CHECK(std::ranges::find(different, "source") != different.end());
    CHECK(std::ranges::find(different, "constant Output") == different.end());
    const auto dim =
        std::ranges::find(one.nearest->differences, "constant head_dim_vo", &engine::FieldDifference::label);
    REQUIRE(dim != one.nearest->differences.end());
    CHECK(dim->here == "128");
    CHECK(dim->there == "64");

    CHECK(!explain(source, {}).nearest);
}

TEST_CASE("a header, an option or a field that differs is named", "[engine][explain]") {
    const auto cubins = cubins_without_cache();
    const auto source = cubins.source_of(merge_of(128));
    auto fields = nlohmann::json::parse(source.fields_json);
    for (auto& field : fields) {
        if (field["label"] == "header common/copy.cuh") field["digest"] = std::string(32, '0');
    }
    fields.push_back({{"label", "option"}, {"value", "-lineinfo"}});
    fields.push_back({{"label", "of another time"}, {"value", "7"}});
    KernelEntry other = entry_of(source, fields);
    other.entry.key = cache::Digest(1, 2);
    const Explanation one = explain(source, {other});
    REQUIRE(one.nearest);
    auto different = labels(one.nearest->differences);
    std::ranges::sort(different);
    CHECK(different == std::vector<std::string>{"header common/copy.cuh", "of another time", "option"});
    for (const auto& [label, here, there] : one.nearest->differences) {
        if (label == "of another time") CHECK((here.empty() && there == "7"));
        if (label == "option") CHECK(there == here + " -lineinfo");
    }
}

TEST_CASE("entries whose metadata is no kernel's are nobody's nearest", "[engine][explain]") {
    const auto cubins = cubins_without_cache();
    const auto source = cubins.source_of(merge_of(128));
    std::vector<KernelEntry> stored;
    for (const char* metadata :
         {"", "{", "[]", "{}", R"({"key_fields": 7})", R"({"key_fields": [7]})",
          R"({"key_fields": [{"label": 1, "value": 2}]})", R"({"key_fields": [{"label": "target"}]})"}) {
        stored.push_back(entry_of(source));
        stored.back().entry.key = cache::Digest(1, stored.size());
        stored.back().entry.metadata = metadata;
    }
    CHECK(!explain(source, stored).nearest);
    const auto one = engine::explain(stored[0].entry.key, stored);
    REQUIRE(one);
    CHECK(one->fields.empty());
}
