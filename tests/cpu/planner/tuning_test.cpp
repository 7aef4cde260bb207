// Tuning tables: what they may say, which entry serves which attention, and what planning makes of it.
#include "families/tuning.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "families/attention.hpp"
#include "families/attention_wgmma/family.hpp"
#include "families/attention_wgmma/kernel.hpp"
#include "planner/plan.hpp"
#include "planner/plan_json.hpp"
#include "planner/repository_tuning.hpp"
#include "planner/schema_errors.hpp"
#include "planner/tuning_json.hpp"
#include "problem/expect.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using families::KernelConfig;
using families::MaskClass;
using families::TileSource;
using families::TuningEntry;
using families::TuningTable;
using nlohmann::json;
using planner::MeasuredEntry;

namespace {

AttentionSpec spec_of(std::int64_t qk, std::int64_t vo) {
    return problem::validate({.head_dim_qk = qk, .head_dim_vo = vo, .q_heads = 32, .kv_heads = 8}, {}).spec;
}

// An entry for contiguous KV, without a mask.
TuningEntry entry_of(int qk, int vo, int tile_q, int tile_kv, TileSource source = TileSource::table) {
    return {.match = {.sm = 90, .head_dim_qk = qk, .head_dim_vo = vo, .mask = MaskClass::full},
            .tile = {.tile_q = tile_q, .tile_kv = tile_kv, .stages = 2},
            .source = source};
}

// An entry for decode of contiguous KV, with any mask.
TuningEntry decode_entry(int head_dim, int tile_kv, int stages, TileSource source = TileSource::table) {
    return {.match = {.sm = 90,
                      .head_dim_qk = head_dim,
                      .head_dim_vo = head_dim,
                      .max_rows = families::kDecodeRows},
            .tile = {.backend = families::Backend::mma,
                     .tile_q = families::kDecodeRows,
                     .tile_kv = tile_kv,
                     .stages = stages},
            .source = source};
}

// The tile_kv of each entry for the spec, the best first.
std::vector<int> keys_for(const std::vector<TuningEntry>& entries, const AttentionSpec& spec) {
    std::vector<int> keys;
    for (const TuningEntry& entry : TuningTable(entries).entries_for(families::match_of(spec, 90)))
        keys.push_back(entry.tile.tile_kv);
    return keys;
}

planner::Plan plan_of(const AttentionSpec& spec, const std::vector<TuningEntry>& entries) {
    return planner::make_plan(problem::validate(spec, {8, 4096, 4096}), families::traits_of(90),
                              TuningTable(entries));
}

// Why the plan has no kernel with this tile.
std::string reason(const planner::Plan& plan, const std::string& candidate) {
    for (const auto* refusals : {&plan.rejected, &plan.unused}) {
        const auto found = std::ranges::find(*refusals, candidate, &Refusal::candidate);
        if (found != refusals->end()) return found->reason;
    }
    return "";
}

json good() {
    return json::parse(R"({"schema": "attnsmith.tuning/1", "entries": [
        {"match": {"sm": 90, "head_dim_qk": 128, "head_dim_vo": 64, "kv": "paged", "mask": "window",
                   "dtype": "fp16", "softcap": true, "alibi": false, "gathered": true,
                   "max_rows": 1024},
         "tile": {"backend": "wgmma", "tile_q": 128, "tile_kv": 96, "stages": 3},
         "measured": {"device": "some GPU", "tflops": 1.5}},
        {"match": {"sm": 90, "head_dim_qk": 64, "head_dim_vo": 64, "kv": "contiguous", "mask": "full"},
         "tile": {"backend": "wgmma", "tile_q": 192, "tile_kv": 80, "stages": 2}},
        {"match": {"sm": 90, "head_dim_qk": 64, "head_dim_vo": 64, "kv": "contiguous", "max_rows": 16},
         "tile": {"backend": "mma", "tile_q": 16, "tile_kv": 128, "stages": 3}}]})");
}

std::vector<MeasuredEntry> parse(const json& document) {
    return planner::parse_tuning(document.dump(), "my.json", TileSource::user);
}

}  // namespace

TEST_CASE("a table's JSON says all of its entries", "[planner][tuning]") {
    const std::vector<MeasuredEntry> entries = parse(good());
    REQUIRE(entries.size() == 3);
    CHECK(entries[0].match == families::TuningMatch{90, 128, 64, true, 16, MaskClass::window, DType::fp16,
                                                    true, false, true, 1024});
    CHECK(entries[0].tile == families::TuningTile{families::Backend::wgmma, 128, 96, 3});
    CHECK(json::parse(entries[0].measured)["device"] == "some GPU");
    CHECK(entries[0].source == TileSource::user);
    CHECK(entries[1].match == families::TuningMatch{90, 64, 64, false, 16, MaskClass::full, {}, {}, {}, {}});
    CHECK(entries[1].measured.empty());
    CHECK(entries[2] == MeasuredEntry{decode_entry(64, 128, 3, TileSource::user)});

    CHECK(test::schema_errors("tuning.schema.json", good()) == "");
    const std::string text = planner::to_json(entries);
    CHECK(test::schema_errors("tuning.schema.json", json::parse(text)) == "");
    const auto again = planner::parse_tuning(text, "again.json", TileSource::user);
    CHECK(again == std::vector{entries[2], entries[1], entries[0]});  // sorted
    CHECK(planner::to_json(again) == text);
    CHECK(planner::parse_tuning(planner::to_json({}), "none.json", TileSource::user).empty());
}

TEST_CASE("what is wrong with a table is named by file and field", "[planner][tuning]") {
    struct Fault {
        const char* pointer;
        json value;
        const char* field;
        bool in_schema = true;
    };
    const Fault faults[] = {
        {"/schema", "attnsmith.tuning/2", "my.json: schema"},
        {"/schema", 1, "my.json: schema"},
        {"/entries", json::object(), "my.json: entries"},
        {"/more", 1, "my.json: more"},
        {"/entries/0", 7, "my.json: entries[0]"},
        {"/entries/1/tiles", 7, "my.json: entries[1].tiles"},
        {"/entries/1/tile", nullptr, "my.json: entries[1].tile"},
        {"/entries/1/measured", 3, "my.json: entries[1].measured"},
        {"/entries/1/match/sm", 9, "my.json: entries[1].match.sm"},
        {"/entries/1/match/sm", "90", "my.json: entries[1].match.sm"},
        {"/entries/1/match/head_dim_qk", 60, "my.json: entries[1].match.head_dim_qk"},
        {"/entries/1/match/head_dim_vo", 520, "my.json: entries[1].match.head_dim_vo"},
        {"/entries/1/match/kv", "dense", "my.json: entries[1].match.kv"},
        {"/entries/1/match/mask", "sliding", "my.json: entries[1].match.mask"},
        {"/entries/1/match/dtype", "bfloat16", "my.json: entries[1].match.dtype"},
        {"/entries/1/match/softcap", 30, "my.json: entries[1].match.softcap"},
        {"/entries/1/match/gathered", 1, "my.json: entries[1].match.gathered"},
        {"/entries/1/match/gathered", true, "my.json: entries[1].match.gathered"},
        {"/entries/1/match/max_rows", 0, "my.json: entries[1].match.max_rows"},
        {"/entries/1/match/max_rows", 2147483648, "my.json: entries[1].match.max_rows"},
        {"/entries/1/match/max_rows", nullptr, "my.json: entries[1].match.max_rows"},
        {"/entries/1/match/q_heads", 8, "my.json: entries[1].match.q_heads"},
        {"/entries/1/tile/backend", "cuda_core", "my.json: entries[1].tile.backend"},
        {"/entries/1/tile/backend", "mma", "my.json: entries[1].match.max_rows"},
        {"/entries/2/match/max_rows", 15, "my.json: entries[2].match.max_rows"},
        {"/entries/2/match/max_rows", 32, "my.json: entries[2].match.max_rows"},
        {"/entries/2/tile/tile_q", 64, "my.json: entries[2].tile.tile_q"},
        {"/entries/2/tile/tile_q", 32, "my.json: entries[2].tile.tile_q"},
        {"/entries/2/tile/backend", "wgmma", "my.json: entries[2].tile.tile_q"},
        {"/entries/1/tile/tile_q", 100, "my.json: entries[1].tile.tile_q"},
        {"/entries/1/tile/tile_kv", 72, "my.json: entries[1].tile.tile_kv"},
        {"/entries/1/tile/tile_kv", 1e300, "my.json: entries[1].tile.tile_kv"},
        {"/entries/1/tile/tile_kv", 18446744073709551600u, "my.json: entries[1].tile.tile_kv"},
        {"/entries/1/tile/stages", 0, "my.json: entries[1].tile.stages"},
        {"/entries/1/tile/stages", 2.5, "my.json: entries[1].tile.stages"},
        {"/entries/1/match", good()["entries"][0]["match"], "my.json: entries[1].match", false},
    };
    for (const auto& [pointer, value, field, in_schema] : faults) {
        json document = good();
        document[json::json_pointer(pointer)] = value;
        CAPTURE(pointer, value.dump());
        const InvalidRequest error = test::refused([&] { parse(document); });
        CHECK(error.field() == field);
        CHECK(!error.accepted().empty());
        if (in_schema) CHECK(test::schema_errors("tuning.schema.json", document) != "");
    }
    for (const char* required :
         {"/schema", "/entries", "/entries/1/match", "/entries/1/tile", "/entries/1/match/sm",
          "/entries/1/match/kv", "/entries/1/tile/stages", "/entries/2/match/max_rows"}) {
        const json::json_pointer pointer(required);
        json document = good();
        document[pointer.parent_pointer()].erase(pointer.back());
        CAPTURE(required);
        CHECK(test::refused([&] { parse(document); }).value() == "nothing");
        CHECK(test::schema_errors("tuning.schema.json", document) != "");
    }
    const auto refused = [](const char* text) {
        return test::refused([&] { planner::parse_tuning(text, "my.json", TileSource::user); }).field();
    };
    for (const char* text : {"", "{", "[]", "null"}) CHECK(refused(text) == "my.json");
    CHECK(refused(R"({"schema": "a", "schema": "b"})") == "my.json: schema");
}

TEST_CASE("the library has the repository's tables, entry by entry", "[planner][tuning]") {
    namespace fs = std::filesystem;
    std::vector<fs::path> files;
    for (const auto& file : fs::directory_iterator(ATTNSMITH_SOURCE_DIR "/runtime/planner/tuning"))
        files.push_back(file.path());
    std::ranges::sort(files);
    std::vector<TuningEntry> entries;
    for (const fs::path& path : files) {
        std::ifstream file(path);
        const std::string text{std::istreambuf_iterator<char>(file), {}};
        CHECK(test::schema_errors("tuning.schema.json", json::parse(text)) == "");
        const std::vector<MeasuredEntry> more =
            planner::parse_tuning(text, path.filename().string(), TileSource::table);
        entries.insert(entries.end(), more.begin(), more.end());
    }
    CHECK(std::ranges::equal(planner::repository_entries(), entries));
}

TEST_CASE("the repository's tables have a legal tile for all they name", "[planner][tuning]") {
    const std::span<const TuningEntry> entries = planner::repository_entries();
    REQUIRE(!entries.empty());
    for (const TuningEntry& entry : entries) {
        AttentionSpec spec{.head_dim_qk = entry.match.head_dim_qk,
                           .head_dim_vo = entry.match.head_dim_vo,
                           .q_heads = 32,
                           .kv_heads = 8};
        if (entry.match.paged)
            spec.kv = KvStorage::paged, spec.page_size = entry.match.gathered == true ? 1 : 64;
        if (entry.match.mask.value_or(MaskClass::full) != MaskClass::full) spec.mask = Mask::causal;
        if (entry.match.mask == MaskClass::window) spec.window_left = 1023;
        const planner::KernelSet set = planner::kernel_set(problem::validate(spec, {}).spec, entry.match.sm,
                                                           planner::repository_tuning());
        const std::vector<families::Candidate>& kernels = set.candidates;
        CAPTURE(spec.head_dim_qk, spec.head_dim_vo, entry.match.paged, entry.tile.tile_q);
        const auto tuned = std::ranges::find_if(kernels, [&](const families::Candidate& one) {
            return one.source == TileSource::table && one.kernel.backend() == entry.tile.backend &&
                   (families::attention_of(one.kernel).is_for_decode(one.kernel) ||
                    one.up_to == entry.match.max_rows);
        });
        REQUIRE(tuned != kernels.end());
        for (const Refusal& refusal : set.rejected) CHECK(!test::contains(refusal.reason, "table's entry"));
        CHECK(tuned->kernel.tile_q() == entry.tile.tile_q);
        CHECK(tuned->kernel.tile_kv() == entry.tile.tile_kv);
        CHECK(tuned->kernel.stages() == entry.tile.stages);
    }
}

TEST_CASE("an attention has the tiles of its head dims, else of larger ones", "[planner][tuning]") {
    const std::vector<TuningEntry> entries = {entry_of(256, 256, 128, 64), entry_of(160, 160, 128, 80),
                                              entry_of(192, 128, 128, 96), entry_of(128, 128, 128, 112)};
    CHECK(keys_for(entries, spec_of(128, 128)) == std::vector{112, 96, 80, 64});
    CHECK(keys_for(entries, spec_of(64, 64)) == std::vector{112, 96, 80, 64});
    CHECK(keys_for(entries, spec_of(136, 128)) == std::vector{96, 80, 64});
    CHECK(keys_for(entries, spec_of(128, 136)) == std::vector{80, 64});
    CHECK(keys_for(entries, spec_of(200, 64)) == std::vector{64});
    CHECK(keys_for({entries[1]}, spec_of(168, 64)).empty());
}

TEST_CASE("an entry serves its SM, its storage and its mask", "[planner][tuning]") {
    std::vector<TuningEntry> entries;
    for (const bool paged : {false, true}) {
        for (const MaskClass mask : {MaskClass::full, MaskClass::causal, MaskClass::window}) {
            entries.push_back(entry_of(128, 128, 128, 16 * (1 + static_cast<int>(entries.size()))));
            entries.back().match.paged = paged;
            entries.back().match.mask = mask;
        }
    }
    AttentionSpec spec = spec_of(128, 128);
    CHECK(keys_for(entries, spec) == std::vector{16});
    spec.kv = KvStorage::ragged;
    CHECK(keys_for(entries, spec) == std::vector{16});
    spec.mask = Mask::causal;
    CHECK(keys_for(entries, spec) == std::vector{32});
    spec.window_left = 100;
    CHECK(keys_for(entries, spec) == std::vector{48});
    spec.mask = Mask::full;
    CHECK(keys_for(entries, spec) == std::vector{48});
    spec.kv = KvStorage::paged;
    CHECK(keys_for(entries, spec) == std::vector{96});
    spec.window_left.reset();
    CHECK(keys_for(entries, spec) == std::vector{64});
    CHECK(TuningTable(entries).entries_for(families::match_of(spec, 100)).empty());
}

TEST_CASE("pages whose keys are gathered may have tiles of their own", "[planner][tuning]") {
    std::vector<TuningEntry> entries = {entry_of(128, 128, 128, 64), entry_of(128, 128, 128, 96),
                                        entry_of(128, 128, 128, 128)};
    for (TuningEntry& entry : entries) entry.match.paged = true;
    entries[1].match.gathered = true, entries[2].match.max_rows = 1024;
    AttentionSpec spec = spec_of(128, 128);
    spec.kv = KvStorage::paged;
    for (const int page_size : {16, 64, 80, 1024}) {
        spec.page_size = page_size;
        CHECK(keys_for(entries, spec) == std::vector{128, 64});
    }
    for (const int page_size : {1, 8, 24, 100}) {
        spec.page_size = page_size;
        CHECK(keys_for(entries, spec) == std::vector{96, 128, 64});
    }
}

TEST_CASE("what leaves less open wins, and a user over the repository", "[planner][tuning]") {
    std::vector<TuningEntry> entries = {entry_of(128, 128, 128, 16), entry_of(128, 128, 128, 32),
                                        entry_of(128, 128, 128, 48)};
    entries[1].match.softcap = true;
    entries[2].match.softcap = true, entries[2].match.dtype = DType::fp16;
    AttentionSpec spec = spec_of(128, 128);
    CHECK(keys_for(entries, spec) == std::vector{16});
    spec.softcap = 30;
    CHECK(keys_for(entries, spec) == std::vector{32, 16});
    spec.dtype = DType::fp16;
    CHECK(keys_for(entries, spec) == std::vector{48, 32, 16});
    entries.push_back(entry_of(128, 128, 128, 64, TileSource::user));
    entries.push_back(entry_of(128, 128, 128, 80, TileSource::user));
    CHECK(keys_for(entries, spec) == std::vector{64, 80, 48, 32, 16});
    // A user's tile for larger heads is further away than the repository's for these.
    entries.push_back(entry_of(136, 128, 128, 96, TileSource::user));
    CHECK(keys_for(entries, spec) == std::vector{64, 80, 48, 32, 16, 96});
}

TEST_CASE("of entries that serve as well, those for fewer rows come first", "[planner][tuning]") {
    const AttentionSpec spec = spec_of(64, 64);
    // The keys of the tiles of the kernel set, and the rows that they are for.
    const auto classes = [&](const std::vector<TuningEntry>& entries) {
        std::vector<Refusal> rejected;
        std::vector<std::pair<int, std::optional<int>>> found;
        for (const auto& one : families::attention_wgmma::family().candidates(spec, families::traits_of(90),
                                                                              TuningTable(entries), rejected))
            if (one.source != TileSource::model) found.emplace_back(one.kernel.tile_kv(), one.up_to);
        return found;
    };
    using Classes = std::vector<std::pair<int, std::optional<int>>>;
    const auto bounded = [](TuningEntry entry, int max_rows) {
        entry.match.max_rows = max_rows;
        return entry;
    };
    const TuningEntry any = entry_of(64, 64, 128, 80);
    const TuningEntry few = bounded(entry_of(64, 64, 128, 96), 1024);
    const TuningEntry fewer = bounded(entry_of(64, 64, 128, 112), 100);
    CHECK(keys_for({any, few, fewer}, spec) == std::vector{112, 96, 80});
    CHECK(classes({any, few, fewer}) == Classes{{112, 100}, {96, 1024}, {80, {}}});
    CHECK(classes({few}) == Classes{{96, 1024}});
    // A user's entry serves all rows that it holds for; so does one for what the spec has, or nearer heads.
    TuningEntry users = bounded(entry_of(64, 64, 128, 128, TileSource::user), 500);
    CHECK(classes({any, few, fewer, users}) == Classes{{128, 500}, {96, 1024}, {80, {}}});
    users.match.max_rows.reset();
    CHECK(classes({any, few, fewer, users}) == Classes{{128, {}}});
    TuningEntry plain = entry_of(64, 64, 128, 144);
    plain.match.softcap = false;
    CHECK(classes({any, few, fewer, plain}) == Classes{{144, {}}});
    CHECK(classes({any, bounded(entry_of(72, 64, 128, 96), 1024)}) == Classes{{80, {}}});
    CHECK(classes({few, entry_of(72, 64, 128, 80)}) == Classes{{96, 1024}, {80, {}}});
    // What cannot be leaves its rows to the next.
    CHECK(classes({any, few, bounded(entry_of(64, 64, 256, 64), 100)}) == Classes{{96, 1024}, {80, {}}});
}

TEST_CASE("a plan has the tile for its packed query rows", "[planner][tuning]") {
    const AttentionSpec spec = spec_of(64, 64);  // 4 query heads to each KV head
    std::vector<TuningEntry> entries = {entry_of(64, 64, 192, 128), entry_of(64, 64, 128, 128),
                                        entry_of(64, 64, 128, 96, TileSource::user)};
    entries[1].match.max_rows = 4096;
    entries[2].match.max_rows = 2048;
    const auto plan_for = [&](std::int64_t q_len) {
        return planner::make_plan(problem::validate(spec, {32, q_len, 4096}), families::traits_of(90),
                                  TuningTable(entries));
    };
    const std::vector<KernelConfig> set = planner::kernel_set(spec, 90, TuningTable(entries)).kernels();
    const auto name = [&](int tile_q, int tile_kv) {
        const auto found = std::ranges::find_if(set, [&](const KernelConfig& kernel) {
            return kernel.backend() == families::Backend::wgmma && kernel.tile_q() == tile_q &&
                   kernel.tile_kv() == tile_kv;
        });
        REQUIRE(found != set.end());
        return found->name();
    };
    planner::Plan plan = plan_for(512);
    CHECK(plan.kernel(planner::Role::attention).name() == name(128, 96));
    CHECK(plan.find(planner::Role::attention)->tile_source == TileSource::user);
    CHECK(reason(plan, name(128, 128)) == "for more than 2048 packed query rows");
    CHECK(reason(plan, name(192, 128)) == "for more than 4096 packed query rows");
    plan = plan_for(513);
    CHECK(plan.kernel(planner::Role::attention).name() == name(128, 128));
    CHECK(plan.find(planner::Role::attention)->tile_source == TileSource::table);
    CHECK(reason(plan, name(128, 96)) == "for up to 2048 packed query rows");
    plan = plan_for(1025);
    CHECK(plan.kernel(planner::Role::attention).name() == name(192, 128));
    CHECK(reason(plan, name(128, 128)) == "for up to 4096 packed query rows");
    // mma serves decodes all the same.
    CHECK(plan_for(1).kernel(planner::Role::attention).backend() == families::Backend::mma);

    // One kernel of two classes is one of the set, and not rejected beside itself.
    const auto wgmma_kernels = [&] {
        const auto kernels = planner::kernel_set(spec, 90, TuningTable(entries)).kernels();
        return std::ranges::count_if(kernels, [](const KernelConfig& kernel) {
            return kernel.backend() == families::Backend::wgmma &&
                   families::takes(kernel,
                                   families::SplitPolicy::none);  // else the model's, for few rows
        });
    };
    CHECK(wgmma_kernels() == 3);
    entries[0].tile = entries[2].tile;
    CHECK(wgmma_kernels() == 2);
    CHECK(reason(plan_for(4096), name(128, 96)) == "");
    CHECK(plan_for(4096).find(planner::Role::attention)->tile_source == TileSource::table);
    // More rows than any entry holds for.
    entries.erase(entries.begin());
    plan = plan_for(4096);
    CHECK(plan.kernel(planner::Role::attention).backend() == families::Backend::mma);
    CHECK(reason(plan, name(128, 128)) == "for up to 4096 packed query rows");
}

TEST_CASE("a plan has the user's tile, and says so", "[planner][tuning]") {
    const AttentionSpec spec = spec_of(128, 128);
    std::vector<TuningEntry> entries = {entry_of(128, 128, 128, 144, TileSource::user),
                                        entry_of(128, 128, 128, 128)};
    const planner::Plan plan = plan_of(spec, entries);
    CHECK(plan.kernel(planner::Role::attention).tile_kv() == 144);
    CHECK(plan.find(planner::Role::attention)->tile_source == TileSource::user);
    const planner::CacheState miss{.key = std::string(32, '0')};
    const std::vector states(plan.steps.size(), miss);
    const json printed = json::parse(planner::to_json(plan, states).dump());
    CHECK(printed["kernels"][0]["tuning"] == "user");
    CHECK(test::schema_errors("plan.schema.json", printed) == "");
    // Prewarm's promise, of any table.
    const std::vector<KernelConfig> set = planner::kernel_set(spec, 90, TuningTable(entries)).kernels();
    CHECK(std::ranges::find(set, plan.kernel(planner::Role::attention)) != set.end());
}

TEST_CASE("a tile that cannot be is passed over, and the plan says why", "[planner][tuning]") {
    using test::contains;
    AttentionSpec spec = spec_of(128, 128);
    std::vector<TuningEntry> entries = {
        entry_of(128, 128, 256, 64, TileSource::user), entry_of(128, 128, 128, 16, TileSource::user),
        entry_of(128, 128, 192, 128, TileSource::user), entry_of(128, 128, 128, 128)};
    entries.push_back(entries[0]);
    entries.back().tile = {.tile_q = 128, .tile_kv = 192, .stages = 3};
    entries.push_back(entries[0]);
    entries.back().tile = {.tile_q = 128, .tile_kv = 64, .stages = 1};
    const planner::Plan plan = plan_of(spec, entries);
    CHECK(plan.kernel(planner::Role::attention).tile_kv() == 128);
    CHECK(plan.find(planner::Role::attention)->tile_source == TileSource::table);
    CHECK(contains(reason(plan, "wgmma 256x64 stages 2"),
                   "of the user's entry for head dims 128 and 128: tiles"));
    CHECK(contains(reason(plan, "wgmma 128x16 stages 2"), "contiguous KV have 48, 64"));
    CHECK(contains(reason(plan, "wgmma 192x128 stages 2"), "registers"));
    CHECK(contains(reason(plan, "wgmma 128x192 stages 3"), "bytes of shared memory"));
    CHECK(contains(reason(plan, "wgmma 128x64 stages 1"), "there are 2 or 3 stages"));

    // Without a tile that can be, there is no wgmma kernel: mma serves.
    entries.erase(entries.begin() + 3);
    CHECK(plan_of(spec, entries).kernel(planner::Role::attention).backend() == families::Backend::mma);
    CHECK(plan_of(spec, {}).find(planner::Role::attention)->tile_source == TileSource::model);
    CHECK(
        contains(reason(plan_of(spec, {}), "wgmma"), "no tuning table has a tile for head dims 128 and 128"));

    // A tile that has no room for these head dims may have it for smaller ones.
    entries = {entry_of(80, 80, 192, 128), entry_of(128, 128, 128, 128)};
    CHECK(plan_of(spec_of(80, 80), entries).kernel(planner::Role::attention).tile_q() == 128);
    CHECK(plan_of(spec_of(64, 64), entries).kernel(planner::Role::attention).tile_q() == 192);
    // A group that does not fit the rows of a warpgroup is divided.
    for (const std::int64_t q_heads : {64, 65, 128}) {
        spec = problem::validate({.head_dim_qk = 64, .q_heads = q_heads, .kv_heads = 1}, {}).spec;
        CHECK(plan_of(spec, entries).kernel(planner::Role::attention).tile_q() == 192);
    }
}

TEST_CASE("an entry that leaves the mask open serves any, where no other is nearer", "[planner][tuning]") {
    std::vector<TuningEntry> entries = {entry_of(128, 128, 128, 64), entry_of(128, 128, 128, 96)};
    entries[0].match.mask.reset();
    entries[1].match.mask = MaskClass::causal;
    AttentionSpec spec = spec_of(128, 128);
    CHECK(keys_for(entries, spec) == std::vector{64});
    spec.mask = Mask::causal;
    CHECK(keys_for(entries, spec) == std::vector{96, 64});
    spec.window_left = 100;
    CHECK(keys_for(entries, spec) == std::vector{64});
}

TEST_CASE("decode has the table's tile of mma, whatever the mask", "[planner][tuning]") {
    // As a plan names its kernel, with who chose the tile.
    const auto chosen = [](AttentionSpec spec, const std::vector<TuningEntry>& entries, int sm = 90) {
        spec = problem::validate(spec, {}).spec;
        const planner::Plan plan = planner::make_plan(problem::validate(spec, {16, 1, 2048}),
                                                      families::traits_of(sm), TuningTable(entries));
        const KernelConfig& kernel = plan.kernel(planner::Role::attention);
        return families::tile_label(kernel.backend(), kernel.tile_q(), kernel.tile_kv(), kernel.stages()) +
               " " + std::string(to_string(plan.find(planner::Role::attention)->tile_source));
    };
    const std::vector<TuningEntry> entries = {decode_entry(128, 128, 1), decode_entry(64, 128, 2),
                                              entry_of(128, 128, 128, 128)};
    AttentionSpec spec = spec_of(128, 128);
    CHECK(chosen(spec, entries) == "mma 16x128 stages 1 table");
    CHECK(chosen(spec, entries, 80) == chosen(spec, {}, 80));  // of another SM
    spec.mask = Mask::causal;
    spec.alignment = 2;
    CHECK(chosen(spec, entries) == "mma 16x128 stages 1 table");
    spec.window_left = 1000;
    spec.kv = KvStorage::ragged;
    CHECK(chosen(spec, entries) == "mma 16x128 stages 1 table");
    CHECK(chosen(spec_of(72, 72), entries) == "mma 16x128 stages 1 table");
    CHECK(chosen(spec_of(32, 32), entries) == "mma 16x128 stages 2 table");
    std::vector<TuningEntry> users = entries;
    users.push_back(decode_entry(128, 64, 2, TileSource::user));
    CHECK(chosen(spec, users) == "mma 16x64 stages 2 user");

    // Without an entry that serves, the model chooses.
    for (const AttentionSpec& other : {spec_of(136, 136), spec_of(128, 256)})
        CHECK(chosen(other, entries) == chosen(other, {}));
    spec.kv = KvStorage::paged, spec.page_size = 16;
    CHECK(chosen(spec, entries) == chosen(spec, {}));

    // Rows that are cut at absolute positions have fixed tiles; with precision high there is no such kernel.
    AttentionSpec bitwise = spec_of(128, 128);
    bitwise.consistency = Consistency::bitwise;
    CHECK(chosen(bitwise, entries) == chosen(bitwise, {}));
    AttentionSpec high = spec_of(128, 128);
    high.precision = Precision::high;
    CHECK(chosen(high, entries) == chosen(high, {}));
}

TEST_CASE("an entry for decode that cannot be is passed over, and the plan says why", "[planner][tuning]") {
    using test::contains;
    const auto decode = [](const AttentionSpec& spec, const std::vector<TuningEntry>& entries) {
        return planner::make_plan(problem::validate(spec, {16, 1, 2048}), families::traits_of(90),
                                  TuningTable(entries));
    };
    const std::vector<TuningEntry> entries = {
        decode_entry(256, 128, 3, TileSource::user), decode_entry(256, 96, 2, TileSource::user),
        decode_entry(256, 64, 4, TileSource::user), decode_entry(256, 64, 2)};
    const planner::Plan plan = decode(spec_of(256, 256), entries);
    CHECK(plan.kernel(planner::Role::attention).stages() == 2);
    CHECK(plan.find(planner::Role::attention)->tile_source == TileSource::table);
    CHECK(contains(reason(plan, "mma 16x128 stages 3"),
                   "of the user's entry for head dims 256 and 256: needs"));
    CHECK(contains(reason(plan, "mma 16x96 stages 2"), "tiles have 32, 64, 128 keys"));
    CHECK(contains(reason(plan, "mma 16x64 stages 4"), "there are 1 to 3 stages"));
    // The families pass over each other's entries.
    for (const Refusal& refusal : plan.rejected) CHECK(!contains(refusal.candidate, "wgmma 16"));
    CHECK(contains(reason(plan, "wgmma"), "no tuning table has a tile for head dims 256 and 256"));
}

TEST_CASE("up to 16 packed query rows are the 16-row kernel's alone", "[planner][tuning]") {
    const auto unused_by_rows = [](const planner::Plan& plan) {
        return std::ranges::count(plan.unused, "for more than 16 packed query rows", &Refusal::reason);
    };
    for (const int sm : {80, 90, 120}) {
        for (const std::int64_t head_dim : {64, 96, 128, 256}) {
            const AttentionSpec spec = spec_of(head_dim, head_dim);  // 4 query heads to each KV head
            for (const std::int64_t q_len : {0, 1, 4, 5}) {
                const planner::Plan plan =
                    planner::make_plan(problem::validate(spec, {1, q_len, 2000}), families::traits_of(sm),
                                       planner::repository_tuning());
                CAPTURE(sm, head_dim, q_len);
                if (q_len <= 4) {
                    CHECK(plan.kernel(planner::Role::attention).backend() == families::Backend::mma);
                    CHECK(plan.kernel(planner::Role::attention).tile_q() == 16);
                    CHECK(unused_by_rows(plan) >= (sm == 90 ? 2 : 1));
                } else {
                    CHECK(unused_by_rows(plan) == 0);
                }
            }
        }
    }
    // A tile that a table has for so few rows is another choice.
    TuningEntry few = entry_of(128, 128, 128, 96);
    few.match.max_rows = 8;
    const planner::KernelSet set =
        planner::kernel_set(spec_of(128, 128), 90, TuningTable({few, entry_of(128, 128, 128, 128)}));
    for (const families::Candidate& one : set.candidates) {
        if (one.kernel.family->role() != planner::Role::attention) continue;
        CAPTURE(one.kernel.name());
        CHECK(one.serves(8) ==
              (families::attention_of(one.kernel).is_for_decode(one.kernel) || one.up_to == 8));
    }
    // Those that are cut, and those of precision high, are ranked for any rows.
    AttentionSpec bitwise = spec_of(128, 128), high = bitwise;
    bitwise.consistency = Consistency::bitwise;
    high.precision = Precision::high;
    for (const AttentionSpec& spec : {bitwise, high})
        for (const families::Candidate& one :
             planner::kernel_set(spec, 80, planner::repository_tuning()).candidates)
            CHECK(one.serves(1));
}
