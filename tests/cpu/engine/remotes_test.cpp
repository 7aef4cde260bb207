// Kernels from remote layers: what comes before a compile, what is kept, and what a remote may not do.
#include <atomic>
#include <cerrno>
#include <thread>

#include "cache/fixture.hpp"
#include "cache/memory_server.hpp"
#include "cache/remote/manifest.hpp"
#include "cubins/cubins.hpp"
#include "cubins/missing_kernel.hpp"
#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"
#include "problem/expect.hpp"
#include "support/catch.hpp"
#include "support/nvrtc.hpp"

using namespace attnsmith;
using cache::testing::MemoryServer;
using cache::testing::TemporaryDirectory;
using engine::Origin;

namespace {

constexpr const char* kAddress = "https://cache.example/kernels";

struct Fleet {
    TemporaryDirectory temporary;
    std::shared_ptr<MemoryServer> server = std::make_shared<MemoryServer>(kAddress);
    std::atomic<int> warnings = 0;

    engine::Settings settings(const std::string& disk) {
        engine::Settings settings;
        settings.cache_dirs = {temporary / disk};
        settings.remotes = {kAddress};
        settings.cache_trust = cache::Trust::all;
        settings.http_client = server;
        settings.nvrtc = test::nvrtc_options();
        settings.compile_threads = 2;
        return settings;
    }

    engine::Cubins cubins(const engine::Settings& settings) {
        return {settings, std::make_shared<const engine::Log>(
                              LogLevel::warn, [this](LogLevel, std::string_view) { ++warnings; })};
    }
    engine::Cubins cubins(const std::string& disk) { return cubins(settings(disk)); }
};

// The quickest kernel to compile.
families::KernelConfig quick_kernel() {
    const AttentionSpec spec{.head_dim_qk = 64, .q_heads = 1};
    return planner::kernel_set(problem::validate(spec, {}).spec, 90, planner::repository_tuning())
        .kernels()
        .back();
}

std::optional<std::string> accept_any(const engine::Cubin&) { return std::nullopt; }

}  // namespace

TEST_CASE("a remote's kernel is fetched, kept on the disk and in memory", "[engine][remotes]") {
    Fleet fleet;
    auto maker = fleet.cubins("maker");
    const auto source = maker.source_of(quick_kernel());
    const auto made = maker.obtain(source, accept_any);
    REQUIRE(made.origin == Origin::made);
    CHECK(maker.push(source, *made.cubin, {}));
    CHECK_FALSE(maker.push(source, *made.cubin, {}));

    auto user = fleet.cubins("user");
    const auto fetched = user.obtain(source, accept_any);
    CHECK(fetched.origin == Origin::fetched);
    CHECK(fetched.stored);
    CHECK(fetched.cubin->bytes == made.cubin->bytes);
    CHECK(user.obtain(source, accept_any).origin == Origin::memory);
    const int asked = static_cast<int>(fleet.server->asked.size());
    CHECK(fleet.cubins("user").obtain(source, accept_any).origin == Origin::disk);
    CHECK(static_cast<int>(fleet.server->asked.size()) == asked);
    CHECK(fleet.warnings == 0);
}

TEST_CASE("threads that want one kernel fetch it once", "[engine][remotes]") {
    Fleet fleet;
    auto maker = fleet.cubins("maker");
    const auto source = maker.source_of(quick_kernel());
    maker.push(source, *maker.obtain(source, accept_any).cubin, {});
    const int before = fleet.server->count("GET cas/");
    auto user = fleet.cubins("user");
    std::atomic<int> fetched = 0, made = 0;
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < 8; ++i) {
            threads.emplace_back([&] {
                const Origin origin = user.obtain(source, accept_any).origin;
                fetched += origin == Origin::fetched;
                made += origin == Origin::made;
            });
        }
    }
    CHECK(fetched == 1);
    CHECK(made == 0);
    CHECK(fleet.server->count("GET cas/") == before + 1);
}

TEST_CASE("what no remote has is compiled, and what a remote does wrong is told once", "[engine][remotes]") {
    Fleet fleet;
    CHECK(fleet.cubins("a").obtain(fleet.cubins("a").source_of(quick_kernel()), accept_any).origin ==
          Origin::made);
    CHECK(fleet.warnings == 0);
    fleet.server->answer = [](const cache::HttpRequest&) -> cache::Result<cache::HttpResponse> {
        return cache::HttpResponse{500, {}};
    };
    auto cubins = fleet.cubins("b");
    CHECK(cubins.obtain(cubins.source_of(quick_kernel()), accept_any).origin == Origin::made);
    CHECK(fleet.warnings == 1);
}

TEST_CASE("who is asked to puts what it compiles to the remotes, and goes on where they fail",
          "[engine][remotes]") {
    Fleet fleet;
    engine::Settings settings = fleet.settings("maker");
    settings.push_compiled = true;
    auto maker = fleet.cubins(settings);
    const auto source = maker.source_of(quick_kernel());
    const auto made = maker.obtain(source, accept_any);
    CHECK(made.origin == Origin::made);
    CHECK(made.pushed);
    CHECK_FALSE(maker.obtain(source, accept_any).pushed);
    const int puts = fleet.server->count("PUT ");
    CHECK(puts == 3);
    // Who finds it there has nothing to push.
    settings = fleet.settings("user");
    settings.push_compiled = true;
    const auto fetched = fleet.cubins(settings).obtain(source, accept_any);
    CHECK(fetched.origin == Origin::fetched);
    CHECK_FALSE(fetched.pushed);
    CHECK(fleet.server->count("PUT ") == puts);
    CHECK(fleet.warnings == 0);

    fleet.server->answer = [](const cache::HttpRequest& request) -> cache::Result<cache::HttpResponse> {
        return cache::HttpResponse{request.method == cache::HttpMethod::put ? 507 : 404, {}};
    };
    settings = fleet.settings("another");
    settings.push_compiled = true;
    auto another = fleet.cubins(settings);
    const auto compiled = another.obtain(source, accept_any);
    CHECK(compiled.origin == Origin::made);
    CHECK(compiled.stored);
    CHECK_FALSE(compiled.pushed);
    CHECK(fleet.warnings == 1);
    CHECK(another.store().stat().counters[cache::Event::remote_failure] == 1);
}

TEST_CASE("without NVRTC the error says what each remote said, too", "[engine][remotes]") {
    Fleet fleet;
    auto maker = fleet.cubins("maker");
    const auto source = maker.source_of(quick_kernel());
    engine::Settings settings = fleet.settings("user");
    settings.nvrtc.path = "/nowhere";
    auto user = fleet.cubins(settings);
    CHECK_THROWS_WITH(user.obtain(source, accept_any), Catch::Contains("NVRTC") &&
                                                           Catch::Contains("no remote has the kernel") &&
                                                           Catch::Contains("it has no entry"));
}

TEST_CASE("where nothing may be compiled, an error says what each remote said", "[engine][remotes]") {
    Fleet fleet;
    auto maker = fleet.cubins("maker");
    const auto source = maker.source_of(quick_kernel());
    maker.push(source, *maker.obtain(source, accept_any).cubin, {});

    const auto taken = fleet.cubins("user").take_stored(source, accept_any);
    CHECK(taken.cubin);
    fleet.server->answer = [](const cache::HttpRequest&) -> cache::Result<cache::HttpResponse> {
        return cache::HttpResponse{403, {}};
    };
    const auto refused = fleet.cubins("another").take_stored(source, accept_any);
    CHECK_FALSE(refused.cubin);
    REQUIRE(refused.passed_over.size() == 1);
    CHECK(refused.passed_over[0] == std::string(kAddress) + ": the server answered 403");
}

TEST_CASE("without compiling, what no remote has is missing, and what could not be asked for has failed",
          "[engine][remotes]") {
    Fleet fleet;
    auto maker = fleet.cubins("maker");
    const auto source = maker.source_of(quick_kernel());
    auto user = fleet.cubins("user");
    const auto obtain = [&](engine::Cubins& cubins) {
        return cubins.obtain(source, accept_any, {.on_miss = OnMiss::error});
    };
    CHECK_THROWS_AS(obtain(user), engine::CubinMissing);
    maker.push(source, *maker.obtain(source, accept_any).cubin, {});

    fleet.server->answer = [](const cache::HttpRequest&) -> cache::Result<cache::HttpResponse> {
        return cache::HttpResponse{500, {}};
    };
    CHECK_THROWS_AS(obtain(user), CacheError);
    fleet.server->answer = nullptr;
    const auto fetched = obtain(user);
    CHECK(fetched.origin == Origin::fetched);
    CHECK(fetched.stored);
    CHECK(obtain(user).origin == Origin::memory);
    const auto counters = user.store().stat().counters;
    CHECK(counters[cache::Event::compile] == 0);
    CHECK(counters[cache::Event::miss] == 3);
    CHECK(counters[cache::Event::miss_error] == 2);
}

TEST_CASE("a remote has seconds where a compile is the other way, and half a minute where there is none",
          "[engine][remotes]") {
    Fleet fleet;
    std::vector<std::chrono::milliseconds> given;
    fleet.server->answer = [&](const cache::HttpRequest& request) -> cache::Result<cache::HttpResponse> {
        given.push_back(request.timeout);
        return cache::HttpResponse{404, {}};
    };
    auto cubins = fleet.cubins("user");
    const auto source = cubins.source_of(quick_kernel());
    CHECK_THROWS_AS(cubins.obtain(source, accept_any, {.on_miss = OnMiss::error}), engine::CubinMissing);
    REQUIRE_FALSE(given.empty());
    CHECK(given.front() > std::chrono::seconds(20));
    given.clear();
    CHECK(cubins.obtain(source, accept_any).origin == Origin::made);
    REQUIRE_FALSE(given.empty());
    CHECK(given.front() <= std::chrono::seconds(2));
}

TEST_CASE("an entry is pushed as it lies in the cache", "[engine][remotes]") {
    Fleet fleet;
    auto maker = fleet.cubins("maker");
    const auto source = maker.source_of(quick_kernel());
    maker.obtain(source, accept_any);
    const cache::Listing all = maker.store().list_for_export([](const auto&) { return true; });
    REQUIRE(all.entries.size() == 1);
    const auto entry = maker.store().read_for_export(all.entries[0]);
    REQUIRE(entry);
    const auto version = all.entries[0].version;
    CHECK(maker.remotes().push(source.key, version, *entry, {}));
    CHECK_FALSE(maker.remotes().push(source.key, version, *entry, {}));
    const auto bytes = cache::encode_entry(source.key, version, *entry);
    CHECK(fleet.server->files.at(cache::entry_path(cache::sha256_of(bytes))) == bytes);
    CHECK(maker.remotes().names() == std::vector<std::string>{kAddress});
    CHECK(maker.remotes().signs_as().empty());
}

TEST_CASE("a remote without a trusted key is passed over, and says so", "[engine][remotes]") {
    Fleet fleet;
    auto settings = fleet.settings("own");
    settings.cache_trust = cache::Trust::owner;
    auto cubins = fleet.cubins(settings);
    CHECK(fleet.warnings == 1);
    CHECK(cubins.remotes().empty());
    REQUIRE(cubins.remotes().passed_over().size() == 1);
    CHECK(test::contains(cubins.remotes().passed_over()[0], "--trust-key"));
    CHECK(cubins.obtain(cubins.source_of(quick_kernel()), accept_any).origin == Origin::made);
    CHECK(fleet.server->asked.empty());
    const auto taken = cubins.take_stored(cubins.source_of(quick_kernel()), [](const engine::Cubin&) {
        return std::optional<std::string>("it is Monday");
    });
    CHECK(taken.passed_over.size() == 2);
}

TEST_CASE("a remote's entry of another kernel is not this one's", "[engine][remotes]") {
    Fleet fleet;
    auto maker = fleet.cubins("maker");
    const auto source = maker.source_of(quick_kernel());
    // Whole, of the right key, target and toolchain, and without a cubin.
    cache::Entry entry{R"({"key_fields":)" + source.fields_json + "}", {}};
    const cache::Remote remote(kAddress, fleet.server, {});
    REQUIRE(remote.push(source.key, maker.compiler().toolchain(), entry, {std::chrono::seconds(1), false}));
    CHECK(maker.obtain(source, accept_any).origin == Origin::made);
    CHECK(fleet.warnings == 1);
}

TEST_CASE("a kind of remotes that cannot be asked is passed over, and the other is not",
          "[engine][remotes]") {
    Fleet fleet;
    auto settings = fleet.settings("own");
    settings.remotes = {"s3://bucket/kernels", kAddress, "s3://bucket/more"};
    settings.s3.trouble = "AWS_REGION is not set";
    auto cubins = fleet.cubins(settings);
    CHECK(fleet.warnings == 2);
    CHECK_FALSE(cubins.remotes().empty());
    CHECK(cubins.remotes().passed_over() ==
          std::vector<std::string>{"s3://bucket/kernels: AWS_REGION is not set",
                                   "s3://bucket/more: AWS_REGION is not set"});
    CHECK(cubins.obtain(cubins.source_of(quick_kernel()), accept_any).origin == Origin::made);
    CHECK(fleet.server->asked.size() == 1);
}

TEST_CASE("an s3:// address is asked by its URL and called by its name", "[engine][remotes]") {
    Fleet fleet;
    fleet.server = std::make_shared<MemoryServer>("http://minio:9000/bucket/team");
    auto settings = fleet.settings("own");
    settings.remotes = {"s3://bucket/team", "s3://bucket/team?a=b"};
    settings.s3_service.endpoint = "http://minio:9000";
    auto maker = fleet.cubins(settings);
    CHECK(fleet.warnings == 1);
    REQUIRE(maker.remotes().passed_over().size() == 1);
    CHECK(test::contains(maker.remotes().passed_over()[0], "no query"));
    const auto source = maker.source_of(quick_kernel());
    CHECK(maker.push(source, *maker.obtain(source, accept_any).cubin, {}));
    CHECK(fleet.server->files.size() == 3);

    // What S3 does not say is a miss, and no warning.
    fleet.server->answer = [](const cache::HttpRequest&) -> cache::Result<cache::HttpResponse> {
        return cache::HttpResponse{403, cache::testing::bytes_of("<Error><Code>AccessDenied</Code></Error>")};
    };
    const auto with_disk = [&](const std::string& disk) {
        auto other = settings;
        other.cache_dirs = {fleet.temporary / disk};
        return fleet.cubins(other);
    };
    const auto missed = with_disk("first").take_stored(source, accept_any);
    REQUIRE(missed.passed_over.size() == 2);
    CHECK(missed.passed_over[0].starts_with("s3://bucket/team: the server answered 403 (AccessDenied)"));
    auto user = with_disk("second");
    CHECK(user.obtain(source, accept_any).origin == Origin::made);
    CHECK(fleet.warnings == 3);  // of the address with a query, each time
    const auto statistics = user.store().stat();
    CHECK(statistics.counters[cache::Event::remote_miss] == 1);
    CHECK(statistics.counters[cache::Event::remote_failure] == 0);
}
