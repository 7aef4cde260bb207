// Cache: the typed reports of a cache directory, which attnsmith_cache() prints as JSON.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "attnsmith/attnsmith.hpp"
#include "bench/temporary_directory.hpp"
#include "reports/cache_operations.hpp"
#include "support/catch.hpp"
#include "support/nvrtc.hpp"

using namespace attnsmith;
namespace fs = std::filesystem;

namespace {

AttentionSpec merge_spec(std::int64_t head_dim) {
    return {.op = Op::merge, .head_dim_vo = head_dim, .q_heads = 4};
}

Runtime runtime_in(const fs::path& directory) {
    RuntimeOptions options{.cache_dirs = {directory.string()}};
    options.nvrtc_path = test::nvrtc_options().path;
    return Runtime(options);
}

nlohmann::json json_of(const Runtime& runtime, const char* operation, const std::string& options = "{}") {
    return nlohmann::json::parse(engine::run_cache_operation(runtime, operation, options));
}

}  // namespace

TEST_CASE("cache: entries are listed, explained, moved and deleted, and the JSON says the same", "[cache]") {
    const bench::TemporaryDirectory temporary;
    Runtime runtime = runtime_in(fs::path(temporary.path()) / "own");
    const Cache cache = runtime.cache();
    const int sms[] = {90};
    const AttentionSpec specs[] = {merge_spec(64), merge_spec(128)};
    REQUIRE(cache.list().entries.empty());
    REQUIRE(runtime.prewarm(specs, sms).ok());

    const CacheListing list = cache.list();
    REQUIRE(list.entries.size() == 2);
    CHECK(list.directories == cache.directories());
    CHECK(list.entries[0].sm == 90);
    CHECK(list.entries[0].bytes == fs::file_size(list.entries[0].path));
    CHECK(list.entries[0].name.starts_with("merge "));
    const nlohmann::json listed = json_of(runtime, "ls");
    CHECK(listed["entries"][1]["key"] == list.entries[1].key);
    CHECK(listed["entries"][1]["bytes"] == list.entries[1].bytes);

    const CacheStatistics statistics = cache.stat();
    CHECK(statistics.writable);
    CHECK(statistics.entries == 2);
    CHECK(statistics.bytes == list.entries[0].bytes + list.entries[1].bytes);
    CHECK(json_of(runtime, "stat")["bytes"] == statistics.bytes);
    CHECK(cache.verify().checked == 2);
    CHECK(cache.verify().bad.empty());

    const AttentionSpec other = merge_spec(256);
    const CacheExplanations miss = cache.explain({&other, 1}, sms);
    REQUIRE(miss.kernels.size() == 1);
    CHECK_FALSE(miss.kernels[0].hit);
    REQUIRE(miss.kernels[0].nearest.has_value());
    CHECK_FALSE(miss.kernels[0].nearest->differences.empty());
    CHECK_THROWS_AS(cache.explain({&other, 1}, {}), InvalidRequest);  // on no SM there is nothing to explain
    const CacheExplanations hit = cache.explain(list.entries[0].key);
    REQUIRE(hit.kernels.size() == 1);
    CHECK(hit.kernels[0].hit);
    REQUIRE(hit.kernels[0].entries.size() == 1);
    CHECK(hit.kernels[0].entries[0].fault == "");
    CHECK(hit.kernels[0].entries[0].entry.path == list.entries[0].path);

    const std::string bundle = (fs::path(temporary.path()) / "kernels.bundle").string();
    const CacheExportReport exported = cache.export_bundle(bundle);
    CHECK(exported.entries == 2);
    CHECK(exported.bytes == fs::file_size(bundle));
    const auto refused_field = [&](const std::string& file,
                                   const CacheExportOptions& options) -> std::string {
        try {
            (void)cache.export_bundle(file, options);
        } catch (const InvalidRequest& error) {
            return error.field();
        }
        return "none";
    };
    CHECK(refused_field("", {}) == "file");
    CHECK(refused_field(bundle, {.sms = {91}}) == "sm");
    CHECK(refused_field(bundle, {.specs = std::vector{merge_spec(64)}, .coverage = Coverage{}}) ==
          "coverage");

    const std::string image = (fs::path(temporary.path()) / "image").string();
    const CacheImageReport written = cache.export_image(image, {.tag = "v1"});
    CHECK(written.entries == 2);
    CHECK(written.directory == image);
    CHECK(written.tag == "v1");
    CHECK(written.digest.starts_with("sha256:"));
    CHECK(cache.export_image(image).digest == written.digest);
    CHECK(json_of(runtime, "export", nlohmann::json{{"oci", image}, {"tag", "v1"}}.dump())["digest"] ==
          written.digest);
    CHECK_THROWS_AS(cache.export_image(temporary.path()), CacheError);
    const auto refused_image = [&](const std::string& directory,
                                   const CacheImageOptions& options) -> std::string {
        try {
            (void)cache.export_image(directory, options);
        } catch (const InvalidRequest& error) {
            return error.field();
        }
        return "none";
    };
    CHECK(refused_image("", {}) == "directory");
    CHECK(refused_image(image, {.tag = "a b"}) == "tag");
    CHECK(refused_image(image, {.sms = {91}}) == "sm");

    const CacheImportReport imported =
        runtime_in(fs::path(temporary.path()) / "theirs").cache().import_bundle(bundle);
    CHECK(imported.imported == 2);
    CHECK(imported.present == 0);

    const CacheRemoveReport removed = cache.remove(list.entries[0].key.substr(0, 8));
    CHECK(removed.key == list.entries[0].key);
    CHECK(removed.entries == 1);
    CHECK_THROWS_AS(cache.remove(list.entries[0].key), CacheError);
    CHECK_THROWS_AS(cache.remove("no key"), InvalidRequest);
    const CacheGcReport unlimited = cache.gc({.max_bytes = kNoLimit});
    CHECK(unlimited.entries == 0);
    CHECK(unlimited.max_bytes == std::nullopt);
    const CacheGcReport collected = cache.gc({.max_bytes = 0});
    CHECK(collected.entries == 1);
    CHECK(collected.max_bytes == 0u);
    CHECK(collected.kept->entries == 0);
    CHECK(cache.clear().entries == 0);
    CHECK_THROWS_AS(cache.export_bundle(bundle), CacheError);
}

TEST_CASE("cache: it outlives its runtime, and without a directory every operation says so", "[cache]") {
    const bench::TemporaryDirectory temporary;
    const Cache cache = runtime_in(fs::path(temporary.path()) / "own").cache();
    CHECK(cache.list().entries.empty());
    RuntimeOptions none;
    none.use_cache = false;
    const Runtime runtime(none);
    CHECK(runtime.cache().directories().empty());
    CHECK_THROWS_AS(runtime.cache().list(), CacheError);
    CHECK_THROWS_AS(runtime.cache().gc(), CacheError);
}

TEST_CASE("cache: reports on a coverage say what of it is unsupported, skipped and warned of", "[cache]") {
    const bench::TemporaryDirectory temporary;
    const std::string own = (fs::path(temporary.path()) / "own").string();
    Runtime runtime = runtime_in(own);
    Coverage coverage = coverage_of({{.spec = merge_spec(64)}, {.spec = merge_spec(128)}});
    const auto is_told = [](const auto& report) {
        return report.unsupported.size() == 1 && report.unsupported[0].name == "tower" &&
               !report.unsupported[0].spec && report.unsupported[0].sm == 0 && report.skipped.size() == 1 &&
               report.warnings.size() == 1;
    };
    CHECK(runtime.prewarm(coverage, {90}).ok());
    coverage.unsupported = {{"tower", "it is no attention"}};
    coverage.skipped = {{"page_size with kv dense", "only paged KV has pages"}};
    coverage.warnings = {{WarningKind::not_planned, "vision_config", "it is not planned"}};

    const PrewarmReport report = runtime.prewarm(coverage, {90});
    CHECK(report.hits == 2);
    CHECK(is_told(report));
    CHECK_FALSE(report.ok());
    REQUIRE(report.kernels.size() == 2);
    CHECK(report.kernels[0].state == PrewarmState::hit);
    CHECK(report.kernels[0].directory == own);
    CHECK(runtime.prewarm(coverage.specs(), std::vector<int>{90}).ok());  // which knows the specs alone

    const std::string bundle = (fs::path(temporary.path()) / "kernels.bundle").string();
    const CacheExportReport exported = runtime.cache().export_bundle(bundle, {.coverage = coverage});
    CHECK(exported.entries == 2);
    CHECK(is_told(exported));
    const std::string image = (fs::path(temporary.path()) / "image").string();
    CHECK(is_told(runtime.cache().export_image(image, {.coverage = coverage})));
    const CacheExplanations explained = runtime.cache().explain(coverage, {90});
    CHECK(explained.kernels.size() == 2);
    CHECK(is_told(explained));
    const auto json = nlohmann::json::parse(to_json(explained));
    CHECK(json["unsupported"] ==
          nlohmann::json::parse(R"([{"name": "tower", "reason": "it is no attention"}])"));
    CHECK(json["skipped"].size() == 1);
    CHECK(json["warnings"][0]["kind"] == "not_planned");
}

TEST_CASE("cache: a spec that no kernel serves is unsupported by its place or its attention's name",
          "[cache]") {
    const bench::TemporaryDirectory temporary;
    Runtime runtime = runtime_in(fs::path(temporary.path()) / "own");
    AttentionSpec bitwise{.op = Op::attention, .head_dim_qk = 64, .head_dim_vo = 64, .q_heads = 4};
    bitwise.consistency = Consistency::bitwise, bitwise.precision = Precision::high;
    const std::vector<AttentionSpec> specs = {merge_spec(64), bitwise};
    const PrewarmReport by_place = runtime.prewarm(specs, std::vector<int>{90});
    REQUIRE(by_place.unsupported.size() == 1);
    CHECK(by_place.unsupported[0].spec == std::size_t{1});
    CHECK(by_place.unsupported[0].sm == 90);
    CHECK(by_place.unsupported[0].name.empty());
    Coverage coverage;
    for (const AttentionSpec& spec : specs) {
        ModelAttention& attention = coverage.attentions.emplace_back();
        attention.name = std::string(to_string(spec.op)) + " layers";
        attention.request.spec = spec;
    }
    const PrewarmReport by_name = runtime.prewarm(coverage, {90});
    REQUIRE(by_name.unsupported.size() == 1);
    CHECK(by_name.unsupported[0].spec == std::nullopt);
    CHECK(by_name.unsupported[0].name == "attention layers");
    CHECK(by_name.unsupported[0].reason == by_place.unsupported[0].reason);
}

TEST_CASE("cache: kNoLimit is no limit", "[cache]") {
    const bench::TemporaryDirectory temporary;
    RuntimeOptions options{.cache_dirs = {temporary.path()}};
    for (const std::uint64_t none : {std::uint64_t{0}, kNoLimit}) {
        options.cache_max_bytes = none;
        CHECK(Runtime(options).cache().stat().max_bytes == std::nullopt);
    }
    options.cache_max_bytes = 1 << 20;
    CHECK(Runtime(options).cache().stat().max_bytes == std::uint64_t{1} << 20);
}
