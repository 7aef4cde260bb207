// Which failures of a compile are remembered, what counts as stored, and that threads compile a kernel once.
#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "attnsmith/version.hpp"
#include "cache/fixture.hpp"
#include "cubins/cubins.hpp"
#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"
#include "problem/expect.hpp"
#include "support/catch.hpp"
#include "support/nvrtc.hpp"

using namespace attnsmith;
using cache::testing::TemporaryDirectory;
using engine::Origin;

namespace {

engine::Cubins cubins_in(std::vector<std::string> directories, int threads = 2) {
    engine::Settings settings;
    settings.cache_dirs = std::move(directories);
    settings.nvrtc = test::nvrtc_options();
    settings.compile_threads = threads;
    return {settings, std::make_shared<const engine::Log>(LogLevel::off, LogSink{})};
}

// The quickest kernel to compile.
families::KernelConfig merge_kernel(std::int64_t head_dim = 64) {
    const AttentionSpec spec{.head_dim_qk = head_dim, .q_heads = 1};
    return planner::kernel_set(problem::validate(spec, {}).spec, 90, planner::repository_tuning())
        .kernels()
        .back();
}

const auto accept_all = [](const engine::Cubin&) { return std::nullopt; };
const auto refuse_all = [](const engine::Cubin&) { return std::optional<std::string>("it is Monday"); };

struct Passing : std::runtime_error {
    Passing() : std::runtime_error("the GPU is full") {}
};

}  // namespace

TEST_CASE("what accept throws is not remembered", "[engine][cubins]") {
    const TemporaryDirectory temporary;
    for (const bool cached : {false, true}) {
        auto cubins = cubins_in(cached ? std::vector{temporary / "cache"} : std::vector<std::string>{});
        const auto source = cubins.source_of(merge_kernel());
        const auto full = [](const engine::Cubin&) -> std::optional<std::string> { throw Passing(); };
        CHECK_THROWS_AS(cubins.obtain(source, full), Passing);
        CHECK_THROWS_AS(cubins.obtain(source, refuse_all), Unsupported);
        CHECK(cubins.obtain(source, accept_all).origin == Origin::memory);
    }
}

TEST_CASE("what no device takes is refused with the reason, each time", "[engine][cubins]") {
    auto cubins = cubins_in({});
    const auto source = cubins.source_of(merge_kernel());
    for (int i = 0; i < 2; ++i) {
        CHECK_THROWS_WITH(cubins.obtain(source, refuse_all), Catch::Contains("it is Monday"));
    }
}

TEST_CASE("an error in the source is remembered, but not stored", "[engine][cubins]") {
    const TemporaryDirectory temporary;
    auto cubins = cubins_in({temporary / "cache"});
    auto source = cubins.source_of(merge_kernel());
    source.unit.program.source = "#error no\n";
    CHECK_THROWS_AS(cubins.obtain(source, accept_all), CompileError);
    source.unit.program.source = cubins.source_of(merge_kernel()).unit.program.source;
    CHECK_THROWS_AS(cubins.obtain(source, accept_all), CompileError);
    CHECK(cubins.store().candidates(source.key).empty());

    // Another process has better luck: what it stores is found.
    auto other = cubins_in({temporary / "cache"});
    CHECK(other.obtain(source, accept_all).origin == Origin::made);
    CHECK(cubins.obtain(source, accept_all).origin == Origin::disk);
}

TEST_CASE("a kernel in memory is stored again where the directory lost it", "[engine][cubins]") {
    const TemporaryDirectory temporary;
    auto cubins = cubins_in({temporary / "cache"});
    const auto source = cubins.source_of(merge_kernel());
    const engine::Obtained made = cubins.obtain(source, accept_all);
    REQUIRE(cubins.ensure_stored(source, made) == "");
    const auto log_of = [&] {
        const auto entry = cubins.store().load(cubins.store().candidates(source.key).at(0));
        return nlohmann::json::parse(entry.value().metadata).at("log").get<std::string>();
    };
    const std::string log = log_of();
    CHECK_THAT(log, Catch::Contains("registers"));
    cubins.store().clear();
    REQUIRE(cubins.store().candidates(source.key).empty());
    const engine::Obtained kept = cubins.obtain(source, accept_all);
    CHECK(kept.origin == Origin::memory);
    CHECK(cubins.ensure_stored(source, kept) == "");
    CHECK(log_of() == log);
    CHECK(cubins_in({temporary / "cache"}).obtain(source, accept_all).origin == Origin::disk);

    // An older toolchain's entry is not this cubin.
    auto newer = std::make_shared<engine::Cubin>(*made.cubin);
    newer->toolchain = *cache::Version::parse("99.0.1");
    CHECK(cubins.ensure_stored(source, {newer, Origin::memory}) == "");
    CHECK(cubins.store().candidates(source.key).size() == 2);
}

TEST_CASE("an entry says what made it, and one of another schema is passed over", "[engine][cubins]") {
    const TemporaryDirectory temporary;
    auto cubins = cubins_in({temporary / "cache"});
    const auto source = cubins.source_of(merge_kernel());
    REQUIRE(cubins.obtain(source, accept_all).origin == Origin::made);
    const auto candidates = cubins.store().candidates(source.key);
    REQUIRE(candidates.size() == 1);
    auto entry = cubins.store().load(candidates.front());
    REQUIRE(entry);
    auto metadata = nlohmann::json::parse(entry->metadata);
    CHECK(metadata.at("schema") == "attnsmith.entry/2");
    CHECK(metadata.at("library") == ATTNSMITH_VERSION);
    CHECK(metadata.at("toolchain") == candidates.front().version.to_string());
    CHECK(metadata.at("sm") == source.kernel.sm);
    CHECK_THAT(metadata.at("compiled").get<std::string>(),
               Catch::Matches("20\\d\\d-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\dZ"));

    metadata["schema"] = "attnsmith.entry/3";
    entry->metadata = metadata.dump();
    REQUIRE(cubins.store().publish(source.key, candidates.front().version, *entry).ok());
    CHECK(cubins_in({temporary / "cache"}).find(source) == nullptr);
}

TEST_CASE("a relative cache directory is that of when the runtime was made", "[engine][environment]") {
    const TemporaryDirectory temporary;
    const auto before = std::filesystem::current_path();
    std::filesystem::current_path(temporary.path());
    const engine::Settings settings = engine::settle({.cache_dirs = {"own", "/layer", "./all.bundle"}});
    std::filesystem::current_path(before);
    CHECK(settings.cache_dirs ==
          std::vector<std::string>{std::filesystem::canonical(temporary.path()) / "own", "/layer",
                                   std::filesystem::canonical(temporary.path()) / "./all.bundle"});
}

TEST_CASE("what cannot be used and cannot be replaced is not stored", "[engine][cubins]") {
    const TemporaryDirectory temporary;
    auto cubins = cubins_in({temporary / "cache"});
    const auto source = cubins.source_of(merge_kernel());
    const engine::Obtained made = cubins.obtain(source, accept_all);
    const std::string path = cubins.store().candidates(source.key).at(0).path;
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    CHECK(cubins.ensure_stored(source, {made.cubin, Origin::made, false, "the disk is full"}) ==
          "the disk is full");
    CHECK(test::contains(cubins.ensure_stored(source, {made.cubin, Origin::memory}), path));
}

TEST_CASE("threads that want a kernel at once compile it once", "[engine][cubins]") {
    const TemporaryDirectory temporary;
    auto cubins = cubins_in({temporary / "cache"}, 1);
    std::atomic<int> compiled{0}, served{0};
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < 16; ++i) {
            threads.emplace_back([&, i] {
                const auto source = cubins.source_of(merge_kernel(i % 2 == 0 ? 64 : 72));
                const auto obtained = cubins.obtain(source, accept_all);
                if (obtained.origin == Origin::made) ++compiled;
                if (obtained.cubin && obtained.cubin->key == source.key) ++served;
            });
        }
    }
    CHECK(compiled == 2);
    CHECK(served == 16);
}
