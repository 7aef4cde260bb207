// What a miss is where nothing may be compiled: an error that says what would help, at once.
#include <array>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "cache/fixture.hpp"
#include "engine/fake_runtime.hpp"
#include "engine/runtime_impl.hpp"
#include "problem/expect.hpp"
#include "support/variable.hpp"

using namespace attnsmith;
using cache::testing::TemporaryDirectory;
using test::contains;
using test::fake;
using test::refused;
using test::Variable;

namespace {

const AttentionSpec kSpec{.op = Op::merge, .head_dim_vo = 64, .q_heads = 3, .lse = true};
constexpr const char* kFlags = "--head-dim 64 --op merge --q-heads 3 --lse";
constexpr int kSm = 90;

RuntimeOptions serving(const std::string& directory) {
    RuntimeOptions options = test::fake_options();
    options.use_cache = true;
    options.cache_dirs = {directory};
    options.nvrtc_path = "/nowhere/libnvrtc.so";  // opened, it would be an error of another kind
    options.on_miss = OnMiss::error;
    return options;
}

RuntimeOptions staging(const std::string& directory) {
    RuntimeOptions options = serving(directory);
    options.nvrtc_path = ATTNSMITH_FAKE_NVRTC;
    options.on_miss = OnMiss::compile;
    return options;
}

void build(const std::string& directory, const AttentionSpec& spec = kSpec) {
    REQUIRE(Runtime(staging(directory)).prewarm(std::array{spec}, std::array{kSm}).ok());
}

KernelMissing missing(Runtime& runtime, const AttentionSpec& spec = kSpec) {
    std::optional<KernelMissing> error;
    try {
        (void)runtime.prepare(spec, {1, 33, 1});
    } catch (const KernelMissing& thrown) {
        error = thrown;
    }
    REQUIRE(error.has_value());
    return *error;
}

std::string key_of(const Runtime& runtime, const AttentionSpec& spec = kSpec) {
    return nlohmann::json::parse(runtime.plan_json(spec, {}, kSm))["kernels"][0]["cache"]["key"];
}

std::string entry_in(const std::string& directory) {
    const Runtime runtime(staging(directory));
    return runtime.cache().list().entries.at(0).path;
}

}  // namespace

TEST_CASE("a miss is an error that names the spec, the SM, the key and the command", "[engine][on_miss]") {
    const TemporaryDirectory temporary;
    Runtime runtime(serving(temporary / "ca'che"));
    const KernelMissing error = missing(runtime);
    CHECK(parse_request(error.request()).spec == kSpec);
    CHECK(error.sm() == kSm);
    CHECK(error.key() == key_of(runtime));
    CHECK(error.command() == std::string("attnsmith prewarm ") + kFlags + " --sm 90 --cache '" +
                                 temporary.path().string() + "/ca'\\''che'");
    const std::string what = error.what();
    CHECK(contains(what, kFlags));
    CHECK(contains(what, "sm 90"));
    CHECK(contains(what, error.key()));
    CHECK(contains(what, "build it with: " + error.command()));
    CHECK_FALSE(contains(what, "\n"));
    // Nothing is remembered: once it is there, it is taken.
    build(temporary / "ca'che");
    CHECK_NOTHROW(runtime.prepare(kSpec, {1, 33, 1}));
}

TEST_CASE("a command without the cache's folder where the environment names it", "[engine][on_miss]") {
    const TemporaryDirectory temporary;
    const Variable directory("ATTNSMITH_CACHE_DIR", temporary / "cache");
    RuntimeOptions options = serving({});
    options.cache_dirs.clear();
    Runtime runtime(options);
    CHECK(missing(runtime).command() == std::string("attnsmith prewarm ") + kFlags + " --sm 90");
    options.use_cache = false;
    Runtime without(options);
    const KernelMissing nowhere = missing(without);
    CHECK(contains(nowhere.what(), "no cache directory is used (it is switched off), so no command can"));
    CHECK(nowhere.command().empty());
    CHECK_FALSE(contains(nowhere.what(), "attnsmith prewarm"));
}

TEST_CASE("the command trusts whom the runtime trusts", "[engine][on_miss]") {
    const TemporaryDirectory temporary;
    RuntimeOptions options = serving(temporary / "cache");
    options.cache_trust = CacheTrust::all;
    Runtime all(options);
    CHECK(missing(all).command().ends_with(" --cache-trust all"));
    options.cache_trust = CacheTrust::group;
    Runtime group(options);
    CHECK(missing(group).command().ends_with(" --cache-trust group"));
}

TEST_CASE("a miss says where something was passed over, and why", "[engine][on_miss]") {
    const TemporaryDirectory temporary;
    const std::string directory = temporary / "cache";
    namespace fs = std::filesystem;
    build(directory);
    Runtime runtime(serving(directory));
    const std::string entry = entry_in(directory);
    fs::permissions(entry, fs::perms::others_write, fs::perm_options::add);
    const std::string of_entry = missing(runtime).what();
    CHECK(contains(of_entry, "passed over: " + entry + ": "));
    fs::permissions(entry, fs::perms::others_write, fs::perm_options::remove);
    fs::permissions(directory, fs::perms::others_write, fs::perm_options::add);
    const std::string of_directory = missing(runtime).what();
    CHECK(contains(of_directory, "what it has was passed over: "));
    CHECK(contains(of_directory, directory));
    CHECK(contains(of_directory, "trust"));
    fs::permissions(directory, fs::perms::others_write, fs::perm_options::remove);
    CHECK_NOTHROW(runtime.prepare(kSpec, {1, 33, 1}));
}

TEST_CASE("a missing layer is warned of once, and named by the error of a missing kernel",
          "[engine][on_miss]") {
    const TemporaryDirectory temporary;
    const std::string mistyped = temporary / "mistyped.bundle";
    RuntimeOptions options = serving(temporary / "cache");
    options.cache_dirs.push_back(mistyped);
    std::vector<std::string> lines;
    options.log_level = LogLevel::warn;
    options.log = [&](LogLevel, std::string_view line) { lines.emplace_back(line); };
    Runtime runtime(options);
    REQUIRE(lines.size() == 1);
    CHECK(contains(lines.front(), mistyped));
    for (int i = 0; i < 2; ++i) CHECK(contains(missing(runtime).what(), mistyped));
    CHECK(lines.size() == 1);
}

TEST_CASE("an attention that misses names its own words, from another thread too", "[engine][on_miss]") {
    const TemporaryDirectory temporary;
    Runtime runtime(serving(temporary / "cache"));
    const AttentionSpec spec{.head_dim_qk = 64,
                             .q_heads = 8,
                             .kv_heads = 2,
                             .mask = Mask::causal,
                             .kv = KvStorage::paged,
                             .page_size = 16,
                             .index_dtype = DType::int64};
    constexpr const char* kWords =
        "attnsmith prewarm --head-dim 64 --q-heads 8 --kv-heads 2 --mask causal --kv paged --page-size 16 "
        "--index-dtype int64 --sm 90 --cache ";
    for (const PlanSizes& sizes : {PlanSizes{1, 1, 100000}, PlanSizes{64, 512, 512}}) {  // split, and not
        try {
            runtime.prepare_async(spec, sizes).get();
            FAIL("it was prepared");
        } catch (const KernelMissing& error) {
            CHECK(error.command().starts_with(kWords));
        }
    }
}

TEST_CASE("what is in the cache is served without NVRTC, and counted", "[engine][on_miss]") {
    const TemporaryDirectory temporary;
    build(temporary / "cache");
    const auto counters = [&] {
        return nlohmann::json::parse(
            to_json(Runtime(staging(temporary / "cache")).cache().stat()))["counters"];
    };
    const auto before = counters();
    CHECK(before["miss_errors"] == 0);
    {
        Runtime runtime(serving(temporary / "cache"));
        CHECK_NOTHROW(runtime.prepare(kSpec, {1, 33, 1}));
        AttentionSpec other = kSpec;
        other.head_dim_vo = 72;
        CHECK(missing(runtime, other).key() == key_of(runtime, other));
        CHECK(missing(runtime, other).key() == key_of(runtime, other));
    }
    const auto after = counters();
    CHECK(after["hits"].get<int>() == before["hits"].get<int>() + 1);
    CHECK(after["misses"].get<int>() == before["misses"].get<int>() + 2);
    CHECK(after["miss_errors"] == 2);
    CHECK(after["compiles"] == before["compiles"]);
    CHECK(after["waits"] == before["waits"]);
}

TEST_CASE("nobody is waited for", "[engine][on_miss]") {
    const TemporaryDirectory temporary;
    Runtime runtime(serving(temporary / "cache"));
    Runtime other(staging(temporary / "cache"));
    const auto key = cache::Digest::parse(key_of(runtime));
    REQUIRE(key);
    const cache::Lock held =
        engine::impl_of(other).cubins.store().try_lock(*key);  // as a process has that compiles it
    REQUIRE(held.held());
    const auto start = std::chrono::steady_clock::now();
    missing(runtime);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));  // a wait lasts 120
}

TEST_CASE("broken, refused and foreign entries are misses", "[engine][on_miss]") {
    const TemporaryDirectory temporary;
    const std::string directory = temporary / "cache";
    build(directory);
    SECTION("broken") {
        const std::string entry = entry_in(directory);
        std::filesystem::resize_file(entry, std::filesystem::file_size(entry) - 1);
        Runtime runtime(serving(directory));
        missing(runtime);
        CHECK_FALSE(std::filesystem::exists(entry));  // in quarantine
    }
    SECTION("refused by the driver") {
        Runtime runtime(serving(directory));
        fake().refuse_next_loads = 1;
        const KernelMissing error = missing(runtime);
        CHECK(contains(error.what(), "what it has was passed over: "));
        CHECK(contains(error.what(), "update the driver, or build it by an NVRTC"));
        CHECK(error.command().ends_with(" --toolchain exact"));
        const KernelMissing again = missing(runtime);  // the same bytes
        CHECK(again.command() == error.command());
        AttentionSpec other = kSpec;
        other.head_dim_vo = 72;
        CHECK_FALSE(contains(missing(runtime, other).command(), "--toolchain"));
        fake().refuse_next_loads = 0;
        CHECK_NOTHROW(Runtime(serving(directory)).prepare(kSpec, {1, 33, 1}));
    }
    SECTION("in a directory that others may write to") {
        std::filesystem::permissions(directory, std::filesystem::perms::others_write,
                                     std::filesystem::perm_options::add);
        Runtime runtime(serving(directory));
        missing(runtime);
    }
}

TEST_CASE("prewarm compiles whatever a miss is", "[engine][on_miss]") {
    const TemporaryDirectory temporary;
    RuntimeOptions options = serving(temporary / "cache");
    options.nvrtc_path = ATTNSMITH_FAKE_NVRTC;
    Runtime runtime(options);
    missing(runtime);
    CHECK(runtime.prewarm(std::array{kSpec}, std::array{kSm}).compiled == 1);
    CHECK_NOTHROW(runtime.prepare(kSpec, {1, 33, 1}));
}

TEST_CASE("the environment says what a miss is, where no option does", "[engine][on_miss][environment]") {
    const TemporaryDirectory temporary;
    RuntimeOptions options = staging(temporary / "cache");
    {
        const Variable variable("ATTNSMITH_ON_MISS", "error");
        options.on_miss.reset();
        Runtime runtime(options);
        missing(runtime);
        options.on_miss = OnMiss::compile;
        CHECK_NOTHROW(Runtime(options).prepare(kSpec, {1, 33, 1}));
    }
    const Variable variable("ATTNSMITH_ON_MISS", "Error");
    options.on_miss.reset();
    const InvalidRequest error = refused([&] { Runtime{options}; });
    CHECK(error.field() == "ATTNSMITH_ON_MISS");
    CHECK(error.accepted() == "compile or error (did you mean error?)");
}

TEST_CASE("options that need NVRTC contradict an error at a miss", "[engine][on_miss]") {
    RuntimeOptions options = serving("/tmp/none");
    options.toolchain = Toolchain::exact;
    CHECK(refused([&] { Runtime{options}; }).field() == "toolchain");
    options.toolchain = Toolchain::newest;
    options.keep_source_dir = "/tmp/none";
    CHECK(refused([&] { Runtime{options}; }).field() == "keep_source_dir");
    options.keep_source_dir.clear();
    options.on_miss = static_cast<OnMiss>(7);
    CHECK(refused([&] { Runtime{options}; }).field() == "on_miss");
}
