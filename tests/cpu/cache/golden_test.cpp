// Files written once, by the release that made their format: each is read or skipped, for ever, never
// misread. A file here is never changed; a new format gets files of its own.
#include <filesystem>

#include "bundle_fixture.hpp"
#include "cache/bundle/bundle.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache {
namespace {

using namespace testing;

const Digest kGoldenKey(0x601de40000000000, 0x00000000000000a1);
const Version kGoldenVersion{13, 0, 88};

Entry golden_entry() {
    std::vector<std::byte> payload;
    for (int i = 0; i < 64; ++i) payload.push_back(static_cast<std::byte>(i * 5));
    return {.metadata = R"({"name":"attention mma 64","entry":"attention","sm":90,"target":"sm_90a",)"
                        R"("toolchain":"13.0.88","log":"","source":"// synthetic\n"})",
            .payload = payload};
}

struct Golden {
    const char* place;  // in golden/: a directory or a bundle
    bool listed;        // whether its entry has a name that this release knows
    int load_error;     // of the entry; 0 where it is served
    std::uint64_t checked;
    std::uint64_t skipped;  // by verify
    std::size_t bad;
    std::size_t warnings;
};

constexpr Golden kGolden[] = {
    {"format-1", true, 0, 1, 0, 0, 0},
    {"format-0", true, EPROTONOSUPPORT, 1, 1, 0, 0},
    {"format-2", true, EPROTONOSUPPORT, 1, 1, 0, 0},
    {"schema-1.bundle", true, 0, 1, 0, 0, 0},
    {"schema-1-format-2.bundle", true, EPROTONOSUPPORT, 1, 1, 0, 0},
    {"schema-2.bundle", false, 0, 0, 0, 1, 1},
};

std::string golden_path(std::string_view place) {
    return fmt::format("{}/tests/cpu/cache/golden/{}", ATTNSMITH_SOURCE_DIR, place);
}

}  // namespace

TEST_CASE("golden files are read or skipped as they were from the first") {
    for (const Golden& golden : kGolden) {
        INFO(golden.place);
        Warnings warnings;
        const Store store(
            {.directory = {}, .read_only_layers = {golden_path(golden.place)}, .warn = warnings.callback()});
        const auto candidates = store.candidates(kGoldenKey);
        REQUIRE(candidates.size() == (golden.listed ? 1 : 0));
        CHECK(store.list().entries.size() == candidates.size());
        for (const Candidate& candidate : candidates) {
            CHECK(candidate.version == kGoldenVersion);
            const Result<Entry> entry = store.load(candidate);
            CHECK(entry.status().error_number == golden.load_error);
            if (entry) CHECK(*entry == golden_entry());
        }
        const VerifyReport report = store.verify();
        CHECK(report.checked == golden.checked);
        CHECK(report.skipped == golden.skipped);
        CHECK(report.bad.size() == golden.bad);
        CHECK(warnings.count() == golden.warnings);
    }
}

TEST_CASE("golden entries are left in place by a store that may write") {
    for (const char* place : {"format-0", "format-1", "format-2"}) {
        const TemporaryDirectory temporary;
        std::filesystem::copy(golden_path(place), temporary / "cache",
                              std::filesystem::copy_options::recursive);
        const Store store({.directory = temporary / "cache"});
        for (const Candidate& candidate : store.candidates(kGoldenKey)) {
            static_cast<void>(store.load(candidate));
        }
        CHECK(store.verify().bad.empty());
        CHECK(store.stat().quarantined == 0);
        CHECK(store.candidates(kGoldenKey).size() == 1);
    }
}

TEST_CASE("what is written today is the golden format") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    REQUIRE(store.publish(kGoldenKey, kGoldenVersion, golden_entry()).ok());
    const std::string path = layout::entry_path({kGoldenKey, kGoldenVersion});
    CHECK(read_text(temporary / "cache/" + path) == read_text(golden_path("format-1/" + path)));
    REQUIRE(store.export_bundle(temporary / "out", [](const ListedEntry&) { return true; }).ok());
    CHECK(read_text(temporary / "out") == read_text(golden_path("schema-1.bundle")));
}

TEST_CASE("golden bundles are imported or refused") {
    const TemporaryDirectory temporary;
    const Store store({.directory = temporary / "cache"});
    CHECK(store.import_bundle(golden_path("schema-2.bundle")).status().error_number == EPROTONOSUPPORT);
    CHECK(store.import_bundle(golden_path("schema-1-format-2.bundle")).status().error_number ==
          EPROTONOSUPPORT);
    CHECK(count_files(temporary / "cache") == 0);
    CHECK(store.import_bundle(golden_path("schema-1.bundle")).ok());
    CHECK(load_newest(store, kGoldenKey) == golden_entry());
}

}  // namespace attnsmith::cache
