// What only a stand-in for NVRTC lets a test see: compiles that hang, fail or are of another version, and
// children forked in the middle of one.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "cache/fixture.hpp"
#include "cubins/cubins.hpp"
#include "engine/fake_runtime.hpp"
#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using cache::testing::ChildProcess;
using cache::testing::TemporaryDirectory;
using cache::testing::Warnings;
using engine::Origin;

namespace {

// A variable for as long as this lives.
class Variable {
  public:
    Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;
    ~Variable() { ::unsetenv(name_); }

  private:
    const char* name_;
};

// The stand-in's compiles, counted; they end while the gate is open.
class StandIn {
  public:
    std::size_t compiles() const {
        const std::string lines = cache::testing::read_text(log_);
        return static_cast<std::size_t>(std::count(lines.begin(), lines.end(), '\n'));
    }
    void wait_for_compile(std::size_t number) const {
        while (compiles() < number) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    void shut() const { cache::testing::write_text(gate_, "shut"); }
    void open() const { std::filesystem::remove(gate_); }

  private:
    const TemporaryDirectory directory_;
    const std::string log_ = directory_ / "compiles";
    const std::string gate_ = directory_ / "gate";
    const Variable count_{"FAKE_NVRTC_LOG", log_};
    const Variable block_{"FAKE_NVRTC_BLOCK", gate_};
};

engine::Cubins cubins_in(const std::string& directory, int threads = 2,
                         const cache::WarnCallback& warn = {}) {
    engine::Settings settings;
    if (!directory.empty()) settings.cache_dirs = {directory};
    settings.nvrtc.path = ATTNSMITH_FAKE_NVRTC;
    settings.compile_threads = threads;
    return {settings,
            std::make_shared<const engine::Log>(warn ? LogLevel::warn : LogLevel::off,
                                                [warn](LogLevel, std::string_view line) { warn(line); })};
}

AttentionSpec merge(std::int64_t head_dim) {
    return {.op = Op::merge, .head_dim_vo = head_dim, .q_heads = 1};
}

families::KernelConfig kernel(std::int64_t head_dim = 64) {
    return planner::kernel_set(problem::validate(merge(head_dim), {}).spec, 90, planner::repository_tuning())
        .kernels()
        .front();
}

RuntimeOptions options(const std::string& directory) {
    RuntimeOptions options = test::fake_options();
    options.nvrtc_path = ATTNSMITH_FAKE_NVRTC;
    options.use_cache = !directory.empty();
    if (options.use_cache) options.cache_dirs = {directory};
    options.compile_threads = 1;
    return options;
}

const auto accept_all = [](const engine::Cubin&) { return std::nullopt; };

// Takes what is of this toolchain only.
engine::Cubins::Accept accept_only(const char* version) {
    return [wanted = *cache::Version::parse(version)](const engine::Cubin& cubin) {
        return cubin.toolchain == wanted ? std::nullopt : std::optional<std::string>("it is another's");
    };
}

}  // namespace

// What a child gets that asks for a kernel: where it came from, or that NVRTC is not to be had in it.
constexpr int kLost = 100, kOtherError = 101;

int outcome_in_child(engine::Cubins& cubins, const engine::KernelSource& source) {
    ::alarm(60);
    try {
        return static_cast<int>(cubins.obtain(source, accept_all).origin);
    } catch (const Error& error) {
        const std::string what = error.what();
        const bool says_all = what.find("forked while another thread") != std::string::npos &&
                              what.find("prewarm") != std::string::npos &&
                              what.find("spawn") != std::string::npos;
        return says_all ? kLost : kOtherError;
    }
}

TEST_CASE("a child forked while a thread compiles is told that NVRTC is not for it",
          "[engine][cubins][fork]") {
    const TemporaryDirectory temporary;
    for (const bool cached : {true, false}) {
        const StandIn nvrtc;
        auto cubins = cubins_in(cached ? temporary / "cache" : "", 1);
        const auto known = cubins.source_of(kernel(80));
        cubins.obtain(known, accept_all);
        nvrtc.shut();
        std::thread maker([&] { cubins.obtain(cubins.source_of(kernel(64)), accept_all); });
        nvrtc.wait_for_compile(2);
        ChildProcess child([&] {
            if (outcome_in_child(cubins, cubins.source_of(kernel(72))) != kLost) return 1;
            // What needs no NVRTC works, in a grandchild as well; the rest does not there either.
            const Origin hit = cubins.obtain(known, accept_all).origin;
            if (hit != Origin::memory && hit != Origin::disk) return 2;
            ChildProcess grandchild([&] { return outcome_in_child(cubins, cubins.source_of(kernel(96))); });
            return grandchild.wait() == kLost ? 0 : 3;
        });
        CHECK(child.wait() == 0);
        // The child gets what the parent stores of the kernel that the parent is at.
        ChildProcess waiting([&] { return outcome_in_child(cubins, cubins.source_of(kernel(64))); });
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        nvrtc.open();
        CHECK(waiting.wait() == (cached ? static_cast<int>(Origin::waited) : kLost));
        maker.join();
        ChildProcess later(
            [&] { return outcome_in_child(cubins, cubins.source_of(kernel(cached ? 104 : 112))); });
        CHECK(later.wait() == static_cast<int>(Origin::made));
    }
}

TEST_CASE("a child forked while a thread opens NVRTC is told, too", "[engine][cubins][fork]") {
    const TemporaryDirectory temporary;
    const StandIn nvrtc;
    const std::string gate = temporary / "gate";
    cache::testing::write_text(gate, "shut");
    const Variable block("FAKE_NVRTC_BLOCK_OPEN", gate);
    auto cubins = cubins_in("");
    std::thread opener([&] { (void)cubins.compiler().nvrtc(); });
    while (!std::filesystem::exists(gate + ".reached")) std::this_thread::yield();
    ChildProcess child([&] { return outcome_in_child(cubins, cubins.source_of(kernel(64))); });
    CHECK(child.wait() == kLost);
    std::filesystem::remove(gate);
    opener.join();
}

TEST_CASE("a child forked while a thread prepares a kernel prepares it, too", "[engine][fork]") {
    const TemporaryDirectory temporary;
    const StandIn nvrtc;
    nvrtc.shut();
    const Runtime runtime = Runtime(options(temporary / "cache"));
    auto& shared = const_cast<Runtime&>(runtime);
    std::thread maker([&] { (void)shared.prepare(merge(64), {}, 0); });
    nvrtc.wait_for_compile(1);
    ChildProcess child([&] {
        ::alarm(60);
        (void)shared.prepare(merge(64), {}, 0);
        return 0;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    nvrtc.open();
    CHECK(child.wait() == 0);
    maker.join();
    CHECK(nvrtc.compiles() == 1);
}

TEST_CASE("threads that prepare a kernel at once compile and load it once", "[engine]") {
    const StandIn nvrtc;
    Runtime runtime{options("")};
    const int loads = test::fake().library_loads;
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < 8; ++i) threads.emplace_back([&] { (void)runtime.prepare(merge(64), {}, 0); });
    }
    CHECK(nvrtc.compiles() == 1);
    CHECK(test::fake().library_loads == loads + 1);
}

TEST_CASE("the newest entry that is accepted is taken, and a newer toolchain adds its own",
          "[engine][cubins]") {
    const TemporaryDirectory temporary;
    const StandIn nvrtc;
    const auto source = cubins_in("").source_of(kernel());
    cubins_in(temporary / "cache").obtain(source, accept_all);
    {
        const Variable newer("FAKE_NVRTC_BUILD", "99");
        auto cubins = cubins_in(temporary / "cache");
        CHECK(cubins.obtain(source, accept_all).origin == Origin::disk);
        CHECK(cubins.obtain(source, accept_only("13.0.99")).origin == Origin::made);
    }
    auto cubins = cubins_in(temporary / "cache");
    CHECK(cubins.store().candidates(source.key).size() == 2);
    CHECK(cubins.obtain(source, accept_all).cubin->toolchain.to_string() == "13.0.99");
    CHECK(cubins.obtain(source, accept_only("13.0.88")).origin == Origin::disk);
    CHECK(nvrtc.compiles() == 2);
}

TEST_CASE("where the toolchain is to be exact another's entries are left alone", "[engine][cubins]") {
    const TemporaryDirectory temporary;
    const StandIn nvrtc;
    RuntimeOptions exact = options(temporary / "cache");
    exact.toolchain = Toolchain::exact;
    {
        const Variable newer("FAKE_NVRTC_BUILD", "99");
        (void)Runtime(options(temporary / "cache")).prepare(merge(64), {}, 0);
    }
    const auto state = [](const Runtime& runtime) {
        return nlohmann::json::parse(runtime.plan_json(merge(64), {}, 90))
            .at("kernels")
            .at(0)
            .at("cache")
            .at("state");
    };
    CHECK(state(Runtime(options(temporary / "cache"))) == "hit");
    CHECK(state(Runtime(exact)) == "miss");
    CHECK_NOTHROW(Runtime(exact).prepare(merge(64), {}, 0));
    CHECK(nvrtc.compiles() == 2);
    CHECK(state(Runtime(exact)) == "hit");
    CHECK_NOTHROW(Runtime(exact).prepare(merge(64), {}, 0));
    CHECK(nvrtc.compiles() == 2);
    CHECK(cubins_in(temporary / "cache").store().list().entries.size() == 2);

    const std::vector<AttentionSpec> specs = {merge(64)};
    const std::vector<int> sms = {90};
    const Variable older("FAKE_NVRTC_BUILD", "77");
    CHECK(Runtime(options(temporary / "cache")).prewarm(specs, sms).hits == 1);
    CHECK(Runtime(exact).prewarm(specs, sms).compiled == 1);

    exact.nvrtc_path = temporary / "none";
    CHECK_THROWS_AS(Runtime(exact).prepare(merge(64), {}, 0), LibraryMissing);
    CHECK_THROWS_AS(Runtime(exact).plan_json(merge(64), {}, 90), LibraryMissing);
    exact.toolchain = Toolchain{2};
    CHECK_THROWS_AS(Runtime(exact), InvalidRequest);
}

TEST_CASE("a cubin that the driver refuses is compiled anew, and stays for others", "[engine]") {
    const TemporaryDirectory temporary;
    const StandIn nvrtc;
    {
        const Variable newer("FAKE_NVRTC_BUILD", "99");
        (void)Runtime(options(temporary / "cache")).prepare(merge(64), {}, 0);
    }
    Runtime runtime(options(temporary / "cache"));
    // It is met before single flight and under its lock, and loaded once; then the new one is.
    test::fake().refuse_next_loads = 1;
    const int loads = test::fake().library_loads;
    CHECK_NOTHROW(runtime.prepare(merge(64), {}, 0));
    CHECK(nvrtc.compiles() == 2);
    CHECK(test::fake().refuse_next_loads == 0);
    CHECK(test::fake().library_loads == loads + 2);
    CHECK(cubins_in(temporary / "cache").store().list().entries.size() == 2);
    CHECK(cubins_in(temporary / "cache").store().verify().bad.empty());
}

TEST_CASE("where the toolchain cannot tell its version nothing is compiled in vain", "[engine][cubins]") {
    const StandIn nvrtc;
    auto cubins = cubins_in("");
    const auto source = cubins.source_of(kernel());
    {
        const Variable untold("FAKE_NVRTC_BUILD", "none");
        CHECK_THROWS_WITH(cubins.obtain(source, accept_all), Catch::Contains("build number"));
    }
    CHECK(nvrtc.compiles() == 0);
    CHECK(cubins.obtain(source, accept_all).origin == Origin::made);
}

TEST_CASE("what spills is what is stored and what is loaded, and is warned of", "[engine][cubins]") {
    const TemporaryDirectory temporary;
    const Variable stores("FAKE_NVRTC_SPILL_STORES", "24"), loads("FAKE_NVRTC_SPILL_LOADS", "40");
    Warnings warnings;
    auto cubins = cubins_in(temporary / "cache", 1, warnings.callback());
    const auto source = cubins.source_of(kernel());
    const auto made = cubins.obtain(source, accept_all).cubin;
    CHECK(made->resources.spill_bytes == 64);
    CHECK(made->resources.registers_per_thread == 32);
    CHECK(made->resources.cubin_bytes == std::ssize(made->bytes));
    CHECK(warnings.count() == 1);
    const auto found = cubins_in(temporary / "cache").find(source);
    REQUIRE(found);
    CHECK(found->resources.spill_bytes == 64);
    CHECK(found->resources.cubin_bytes == std::ssize(found->bytes));
}

TEST_CASE("sources are kept where somebody asks for them", "[engine][cubins]") {
    const TemporaryDirectory temporary;
    RuntimeOptions keeping = options("");
    keeping.keep_source_dir = temporary / "sources";
    (void)Runtime(keeping).prepare(merge(64), {}, 0);
    std::vector<std::filesystem::path> files;
    for (const auto& file : std::filesystem::directory_iterator(keeping.keep_source_dir))
        files.push_back(file);
    REQUIRE(files.size() == 1);
    CHECK(files[0].extension() == ".cu");
    CHECK_THAT(cache::testing::read_text(files[0]), Catch::Contains("attnsmith_merge_states"));
    (void)Runtime(options("")).prepare(merge(64), {}, 0);
    CHECK(std::distance(std::filesystem::directory_iterator(keeping.keep_source_dir), {}) == 1);
}

TEST_CASE("where progress throws no further kernel is begun", "[engine]") {
    const TemporaryDirectory temporary;
    const StandIn nvrtc;
    const Variable slow("FAKE_NVRTC_MS", "20");
    Runtime runtime(options(temporary / "cache"));
    std::vector<AttentionSpec> specs;
    for (std::int64_t dim = 8; dim <= 128; dim += 8) specs.push_back(merge(dim));
    const std::vector<int> sms = {90};
    struct Enough {};
    const auto stop = [](const PrewarmedKernel&, int, int) { throw Enough(); };
    CHECK_THROWS_AS(runtime.prewarm(specs, sms, {.jobs = 2, .progress = stop}), Enough);
    CHECK(nvrtc.compiles() < specs.size() / 2);
}

TEST_CASE("a compile that fails is remembered, for all who wait for it", "[engine][cubins]") {
    const TemporaryDirectory temporary;
    const StandIn nvrtc;
    nvrtc.shut();
    const Variable failing("FAKE_NVRTC_FAIL", "1");
    auto cubins = cubins_in(temporary / "cache");
    const auto source = cubins.source_of(kernel());
    std::atomic<int> failures{0};
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < 4; ++i) {
            threads.emplace_back([&] {
                try {
                    cubins.obtain(source, accept_all);
                } catch (const CompileError&) {
                    ++failures;
                }
            });
        }
        nvrtc.wait_for_compile(1);
        nvrtc.open();
    }
    CHECK(failures == 4);
    CHECK(nvrtc.compiles() == 1);
    CHECK(cubins.store().candidates(source.key).empty());
}

TEST_CASE("a whole entry that cannot be the kernel is passed over, told once, and replaced",
          "[engine][cubins]") {
    using Json = nlohmann::json;
    const TemporaryDirectory temporary;
    const StandIn nvrtc;
    const std::string directory = temporary / "cache";
    const auto source = cubins_in("").source_of(kernel());
    cubins_in(directory).obtain(source, accept_all);
    const cache::Store store({.directory = directory});
    const cache::Entry good = cache::testing::load_newest(store, source.key);
    const cache::Version version = store.candidates(source.key).front().version;

    const auto with = [&](const char* pointer, Json value) {
        Json metadata = Json::parse(good.metadata);
        metadata[Json::json_pointer(pointer)] = std::move(value);
        return cache::Entry{metadata.dump(), good.payload};
    };
    cache::Entry cut = good;
    cut.payload.resize(100);
    const std::pair<const char*, cache::Entry> wrong[] = {
        {"no metadata at all", {"{}", good.payload}},
        {"another entry", with("/entry", "attnsmith_other")},
        {"an entry that is a number", with("/entry", 7)},
        {"another count of shared bytes", with("/resources/shared_bytes", 16)},
        {"registers beyond any int", with("/resources/registers_per_thread", 1e300)},
        {"negative registers", with("/resources/registers_per_thread", -1)},
        {"registers of 2^40", with("/resources/registers_per_thread", std::int64_t{1} << 40)},
        {"resources that are text", with("/resources", "many")},
        {"no ELF", {good.metadata, cache::testing::bytes_of("not a cubin")}},
        {"half an ELF", cut},
    };
    for (const auto& [what, entry] : wrong) {
        INFO(what);
        REQUIRE(store.publish(source.key, version, entry).ok());
        Warnings warnings;
        auto cubins = cubins_in(directory, 1, warnings.callback());
        for (int i = 0; i < 3; ++i) CHECK_FALSE(cubins.find(source));
        const engine::Obtained obtained = cubins.obtain(source, accept_all);
        CHECK(obtained.origin == Origin::made);
        CHECK(obtained.cubin->bytes == good.payload);
        CHECK(warnings.count() == 1);
        CHECK(cubins_in(directory).obtain(source, accept_all).origin == Origin::disk);
    }
    CHECK(store.stat().quarantined == 0);
}
