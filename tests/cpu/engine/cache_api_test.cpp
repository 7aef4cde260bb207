// Cache: the typed reports of a cache directory, which cache_json prints.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "attnsmith/attnsmith.hpp"
#include "bench/temporary_directory.hpp"
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
    return nlohmann::json::parse(runtime.cache_json(operation, options));
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
    CHECK(hit.kernels[0].faults == std::vector<std::string>{""});

    const std::string bundle = (fs::path(temporary.path()) / "kernels.bundle").string();
    const CacheExportReport exported = cache.export_bundle({.file = bundle});
    CHECK(exported.entries == 2);
    CHECK(exported.bytes == fs::file_size(bundle));
    const auto refused_field = [&](const CacheExportOptions& options) -> std::string {
        try {
            (void)cache.export_bundle(options);
        } catch (const InvalidRequest& error) {
            return error.field();
        }
        return "none";
    };
    CHECK(refused_field({}) == "file");
    CHECK(refused_field({.file = bundle, .sms = {91}}) == "sm");

    const std::string image = (fs::path(temporary.path()) / "image").string();
    const CacheImageReport written = cache.export_image({.oci = image, .tag = "v1"});
    CHECK(written.entries == 2);
    CHECK(written.tag == "v1");
    CHECK(written.digest.starts_with("sha256:"));
    CHECK(cache.export_image({.oci = image}).digest == written.digest);
    CHECK(json_of(runtime, "export", nlohmann::json{{"oci", image}, {"tag", "v1"}}.dump())["digest"] ==
          written.digest);
    CHECK_THROWS_AS(cache.export_image({.oci = temporary.path()}), CacheError);
    const auto refused_image = [&](const CacheImageOptions& options) -> std::string {
        try {
            (void)cache.export_image(options);
        } catch (const InvalidRequest& error) {
            return error.field();
        }
        return "none";
    };
    CHECK(refused_image({}) == "oci");
    CHECK(refused_image({.oci = image, .tag = "a b"}) == "tag");
    CHECK(refused_image({.oci = image, .sms = {91}}) == "sm");

    const CacheImportReport imported =
        runtime_in(fs::path(temporary.path()) / "theirs").cache().import_bundle(bundle);
    CHECK(imported.imported == 2);
    CHECK(imported.present == 0);

    const CacheRemoveReport removed = cache.remove(list.entries[0].key.substr(0, 8));
    CHECK(removed.key == list.entries[0].key);
    CHECK(removed.entries == 1);
    CHECK_THROWS_AS(cache.remove(list.entries[0].key), CacheError);
    CHECK_THROWS_AS(cache.remove("no key"), InvalidRequest);
    const CacheGcReport collected = cache.gc({.max_bytes = 0});
    CHECK(collected.entries == 1);
    CHECK(collected.max_bytes == 0u);
    CHECK(collected.kept->entries == 0);
    CHECK(cache.clear().entries == 0);
    CHECK_THROWS_AS(cache.export_bundle({.file = bundle}), CacheError);
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
