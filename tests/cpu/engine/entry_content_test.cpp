// What an entry holds is held against its key: at load, by verify, export and import, and by explain. NVRTC
// is a stand-in.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cache/fixture.hpp"
#include "compiler/cubin_info.hpp"
#include "cubins/cubin_entry.hpp"
#include "cubins/cubins.hpp"
#include "families/source.hpp"
#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"
#include "reports/cache_operations.hpp"
#include "support/catch.hpp"
#include "support/nvrtc.hpp"

using namespace attnsmith;
using cache::testing::TemporaryDirectory;
using cache::testing::Warnings;
using engine::Origin;

namespace {

const auto accept_all = [](const engine::Cubin&) { return std::nullopt; };

engine::Settings settings_of(const std::string& directory) {
    engine::Settings settings;
    settings.cache_dirs = {directory};
    settings.nvrtc.path = ATTNSMITH_FAKE_NVRTC;
    settings.compile_threads = 1;
    return settings;
}

engine::Cubins cubins_in(const std::string& directory, const cache::WarnCallback& warn = {}) {
    return {settings_of(directory),
            std::make_shared<const engine::Log>(warn ? LogLevel::warn : LogLevel::off,
                                                [warn](LogLevel, std::string_view line) { warn(line); })};
}

families::KernelConfig merge(DType dtype = DType::bf16, int sm = 80) {
    const AttentionSpec spec{.op = Op::merge, .dtype = dtype, .head_dim_vo = 64, .q_heads = 1};
    return planner::kernel_set(problem::validate(spec, {}).spec, sm, planner::repository_tuning())
        .kernels()
        .front();
}

cache::Entry stored_entry(const engine::Cubins& cubins, const engine::KernelSource& source) {
    return cubins.store().load(cubins.store().candidates(source.key).at(0)).value();
}

// The entry with another value of the variable that the kernel's own code exports.
cache::Entry with_shared_bytes(cache::Entry entry, std::uint32_t value) {
    const auto read = [&] {
        return compiler::CubinInfo::parse(entry.payload)->read_u32(families::kSharedBytesSymbol).value();
    };
    const std::uint32_t before = read();
    for (std::size_t at = 0; at + sizeof value <= entry.payload.size(); ++at) {
        if (std::memcmp(entry.payload.data() + at, &before, sizeof before) != 0) continue;
        std::memcpy(entry.payload.data() + at, &value, sizeof value);
        const auto changed = compiler::CubinInfo::parse(entry.payload);
        if (changed && changed->read_u32(families::kSharedBytesSymbol) == value) return entry;
        std::memcpy(entry.payload.data() + at, &before, sizeof before);
    }
    throw std::runtime_error("the cubin has no such variable");
}

// A variable for as long as this lives.
class Variable {
  public:
    Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;
    ~Variable() { ::unsetenv(name_); }

  private:
    const char* name_;
};

// By what explain says of the request, as a dry run does.
std::string state_of(const std::string& directory, const engine::KernelSource& source) {
    RuntimeOptions options;
    options.cache_dirs = {directory};
    options.nvrtc_path = ATTNSMITH_FAKE_NVRTC;
    options.log_level = LogLevel::off;
    const Runtime runtime(options);
    const nlohmann::json asked = {
        {"request", {{"op", "merge"}, {"head_dim", 64}, {"q_heads", 1}, {"sm", 80}}}};
    const auto explained =
        nlohmann::json::parse(engine::run_cache_operation(runtime, "explain", asked.dump()));
    for (const auto& kernel : explained.at("kernels"))
        if (kernel.at("key") == source.key.hex()) return kernel.at("state");
    return "unknown";
}

}  // namespace

TEST_CASE("an entry that is another kernel's or another GPU's is no hit, and is told of",
          "[engine][content]") {
    const TemporaryDirectory temporary;
    auto makers = cubins_in(temporary / "made");
    const auto wanted = makers.source_of(merge());
    const auto other = makers.source_of(merge(DType::fp16));
    const auto newer = makers.source_of(merge(DType::bf16, 86));
    REQUIRE(wanted.unit.entry == other.unit.entry);
    REQUIRE(wanted.kernel.shared_bytes == other.kernel.shared_bytes);
    for (const auto* source : {&wanted, &other, &newer})
        REQUIRE(makers.obtain(*source, accept_all).origin == Origin::made);
    const cache::Version version = makers.compiler().toolchain();
    const cache::Entry good = stored_entry(makers, wanted);

    REQUIRE(makers.store().export_bundle(temporary / "good.bundle",
                                         [](const cache::ListedEntry&) { return true; }));
    struct Case {
        const char* what;
        cache::Entry entry;
        const char* reason;
        bool bad;  // by itself, whoever asks for it
    };
    auto of_another_release = nlohmann::json::parse(good.metadata);
    of_another_release["schema"] = "attnsmith.entry/1";
    auto without_fields = nlohmann::json::parse(good.metadata);
    without_fields.erase("key_fields");
    auto other_field = nlohmann::json::parse(good.metadata);
    other_field["key_fields"][2]["value"] = "sm_90";
    const auto with = [&](const char* pointer, nlohmann::json value) {
        auto changed = nlohmann::json::parse(good.metadata);
        changed[nlohmann::json::json_pointer(pointer)] = std::move(value);
        return cache::Entry{changed.dump(), good.payload};
    };
    auto of_another_layout = with_shared_bytes(with("/resources/shared_bytes", 4096), 4096);
    std::string deep(200000, '[');
    deep.append(200000, ']');
    const Case cases[] = {
        {"another kernel's entry", stored_entry(makers, other), "it holds another kernel", true},
        {"another GPU's code",
         {good.metadata, stored_entry(makers, newer).payload},
         "its machine code is for sm 86, not 80",
         true},
        {"a field that was changed", {other_field.dump(), good.payload}, "it holds another kernel", true},
        {"no fields", {without_fields.dump(), good.payload}, "its metadata is not a kernel's", true},
        {"no cubin", {good.metadata, cache::testing::bytes_of("text")}, "no cubin", true},
        {"code of another layout", with_shared_bytes(good, 4096), "machine code lays out 4096 bytes", true},
        {"code and metadata of another layout", of_another_layout, "lays out 4096 bytes", false},
        {"another entry's name", with("/entry", "nope"), "lacks nope", true},
        {"a symbol that is no entry", with("/entry", families::kSharedBytesSymbol), "lacks", true},
        {"another number of shared bytes", with("/resources/shared_bytes", 999999999),
         "is said to lay out 999999999", true},
        {"a negative count", with("/resources/shared_bytes", -1), "its metadata is not a kernel's", true},
        {"a count that no type holds", with("/resources/spill_bytes", 1e300),
         "its metadata is not a kernel's", true},
        {"a negative time", with("/compile_ms", -1), "its metadata is not a kernel's", true},
        {"another sm", with("/sm", 86), "its metadata says sm 86", true},
        {"another target", with("/target", "sm_86"), "its metadata is not a kernel's", true},
        {"another toolchain", with("/toolchain", "1.2.3"), "its metadata says 1.2.3", true},
        {"no fields at all", {"{}", good.payload}, "its metadata is not a kernel's", true},
        {"no schema's", with("/schema", "text"), "its metadata is not a kernel's", true},
        {"fields that are none", with("/key_fields", nullptr), "its metadata is not a kernel's", true},
        {"deep fields",
         {R"({"schema": "attnsmith.entry/2", "key_fields": )" + deep + "}", good.payload},
         "its metadata is not a kernel's",
         true},
        {"another release's entry", {of_another_release.dump(), good.payload}, "of another release", false},
    };
    for (const Case& one : cases) {
        INFO(one.what);
        const TemporaryDirectory folder;
        const std::string directory = folder / "cache";
        Warnings warnings;
        auto cubins = cubins_in(directory, warnings.callback());
        const cache::Store& store = cubins.store();
        REQUIRE(store.publish(wanted.key, version, one.entry).ok());
        CHECK_FALSE(cubins.find(wanted));
        REQUIRE(warnings.count() == 1);
        CHECK_THAT(warnings.messages()[0], Catch::Contains(one.reason));
        CHECK(store.candidates(wanted.key).size() == 1);
        CHECK(state_of(directory, wanted) == "miss");

        const auto everything = [](const cache::ListedEntry&) { return true; };
        const auto exported = store.export_bundle(folder / "all.bundle", everything);
        REQUIRE(exported);
        CHECK(exported->bad.size() == (one.bad ? 1 : 0));
        const cache::VerifyReport verified = store.verify();
        REQUIRE(verified.bad.size() == (one.bad ? 1 : 0));
        if (one.bad) CHECK_THAT(verified.bad[0].reason, Catch::Contains(one.reason));
        CHECK(store.candidates(wanted.key).size() == (one.bad ? 0 : 1));

        // A good one from a bundle takes its place.
        if (one.bad) {
            REQUIRE(store.publish(wanted.key, version, one.entry).ok());
            const auto imported = store.import_bundle(temporary / "good.bundle");
            REQUIRE(imported);
            CHECK(imported->published >= 1);
            CHECK(cubins_in(directory).find(wanted)->bytes == good.payload);
            REQUIRE(store.publish(wanted.key, version, one.entry).ok());
        }
        // What takes its place is right.
        CHECK(cubins.obtain(wanted, accept_all).origin == Origin::made);
        CHECK(cubins_in(directory).find(wanted)->bytes == good.payload);
        CHECK(store.verify().bad.empty());
    }
}

TEST_CASE("explain says why an entry is no hit", "[engine][content]") {
    const TemporaryDirectory temporary;
    const std::string directory = temporary / "cache";
    RuntimeOptions options;
    options.cache_dirs = {directory};
    options.nvrtc_path = ATTNSMITH_FAKE_NVRTC;
    options.log_level = LogLevel::off;
    const Runtime runtime(options);
    auto cubins = cubins_in(directory);
    const auto wanted = cubins.source_of(merge());
    const auto other = cubins.source_of(merge(DType::fp16));
    REQUIRE(cubins.obtain(wanted, accept_all).cubin);
    REQUIRE(cubins.obtain(other, accept_all).cubin);
    const auto explained = [&](const engine::KernelSource& source) {
        const nlohmann::json asked = {{"key", source.key.hex()}};
        return nlohmann::json::parse(engine::run_cache_operation(runtime, "explain", asked.dump()))
            .at("kernels")
            .at(0);
    };
    CHECK(explained(wanted).at("state") == "hit");
    CHECK(explained(wanted).at("entries").at(0).at("fault") == "");
    REQUIRE(
        cubins.store().publish(wanted.key, cubins.compiler().toolchain(), stored_entry(cubins, other)).ok());
    CHECK(explained(wanted).at("state") == "miss");
    CHECK_THAT(explained(wanted).at("entries").at(0).at("fault").get<std::string>(),
               Catch::Contains("it holds another kernel, that of key " + other.key.hex()));
}

TEST_CASE("cache rm and dir from the library", "[engine][content]") {
    const TemporaryDirectory temporary;
    const std::string directory = temporary / "cache", layer = temporary / "layer";
    auto cubins = cubins_in(directory);
    const auto one = cubins.source_of(merge()), other = cubins.source_of(merge(DType::fp16));
    REQUIRE(cubins.obtain(one, accept_all).cubin);
    REQUIRE(cubins.obtain(other, accept_all).cubin);
    const cache::Entry entry = stored_entry(cubins, one);
    REQUIRE(cubins.store().publish(one.key, {12, 9, 1}, entry).ok());
    std::filesystem::copy(directory, layer, std::filesystem::copy_options::recursive);
    RuntimeOptions options;
    options.cache_dirs = {directory, layer};
    options.log_level = LogLevel::off;
    const Runtime runtime(options);
    const auto rm = [&](const nlohmann::json& asked) {
        return nlohmann::json::parse(engine::run_cache_operation(runtime, "rm", asked.dump()));
    };
    const auto removed = rm({{"key", one.key.hex().substr(0, 12)}});
    CHECK(removed.at("schema") == "attnsmith.cache-rm/1");
    CHECK(removed.at("key") == one.key.hex());
    CHECK(removed.at("entries") == 2);
    CHECK(removed.at("left") == 2);
    CHECK(removed.at("bytes") > 2 * entry.payload.size());
    CHECK(cubins.store().candidates(one.key).empty());
    CHECK(cubins.store().candidates(other.key).size() == 1);
    CHECK_THROWS_WITH(rm({{"key", one.key.hex()}}), Catch::Contains("read-only layers only"));
    CHECK_THROWS_AS(rm({{"key", 7}}), InvalidRequest);
    CHECK_THROWS_AS(rm(nlohmann::json::object()), InvalidRequest);
    CHECK_THROWS_WITH(rm({{"key", "00000000"}}), Catch::Contains("no entry has the key"));

    const auto dir = nlohmann::json::parse(engine::run_cache_operation(runtime, "dir", "{}"));
    CHECK(dir.at("schema") == "attnsmith.cache-dir/1");
    CHECK(dir.at("directories") == nlohmann::json{directory, layer});
    CHECK(dir.at("named_by") == "cache_dirs");
}

TEST_CASE("a failure of NVRTC that may pass is not remembered, an error in the source is",
          "[engine][content]") {
    for (const bool cached : {false, true}) {
        const TemporaryDirectory temporary;
        engine::Settings settings = settings_of(temporary / "cache");
        if (!cached) settings.cache_dirs.clear();
        engine::Cubins cubins(settings, std::make_shared<const engine::Log>(LogLevel::off, LogSink{}));
        const auto source = cubins.source_of(merge());
        {
            const Variable fails("FAKE_NVRTC_FAIL", "memory");
            CHECK_THROWS_WITH(cubins.obtain(source, accept_all), Catch::Contains("nvrtcCompileProgram"));
        }
        CHECK(cubins.obtain(source, accept_all).origin == Origin::made);

        const auto other = cubins.source_of(merge(DType::fp16));
        {
            const Variable fails("FAKE_NVRTC_FAIL", "1");
            CHECK_THROWS_AS(cubins.obtain(other, accept_all), CompileError);
        }
        CHECK_THROWS_AS(cubins.obtain(other, accept_all), CompileError);
    }
}

// Says what a hit costs beside reading its file, with a kernel of the real NVRTC's.
TEST_CASE("cost of holding an entry against its kernel", "[.][benchmark]") {
    const TemporaryDirectory temporary;
    engine::Settings settings = settings_of(temporary / "cache");
    settings.nvrtc = test::nvrtc_options();
    engine::Cubins cubins(settings, std::make_shared<const engine::Log>(LogLevel::off, LogSink{}));
    const AttentionSpec spec{.head_dim_qk = 128, .q_heads = 8, .mask = Mask::causal};
    const auto source = cubins.source_of(
        planner::kernel_set(problem::validate(spec, {}).spec, 90, planner::repository_tuning())
            .kernels()
            .front());
    REQUIRE(cubins.obtain(source, accept_all).cubin);
    const cache::Candidate candidate = cubins.store().candidates(source.key).at(0);
    const cache::Entry entry = cubins.store().load(candidate).value();
    const auto microseconds = [](const auto& work) {
        double best = 1e9;
        for (int i = 0; i < 200; ++i) {
            const auto start = std::chrono::steady_clock::now();
            work();
            const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
            best = std::min(best, took.count());
        }
        return best;
    };
    const std::string fields = nlohmann::json::parse(entry.metadata).at("key_fields").dump();
    const auto cubin = engine::from_entry(candidate, entry).cubin;
    WARN("entry of " << entry.metadata.size() << " + " << entry.payload.size() << " bytes; find "
                     << microseconds([&] { static_cast<void>(cubins.find(source)); }) << " us, from_entry "
                     << microseconds([&] { static_cast<void>(engine::from_entry(candidate, entry)); })
                     << " us, of which its fields "
                     << microseconds([&] { static_cast<void>(cache::parse_fields(fields)); })
                     << " us; what_is_wrong "
                     << microseconds([&] { static_cast<void>(engine::what_is_wrong(source, *cubin)); })
                     << " us");
}
