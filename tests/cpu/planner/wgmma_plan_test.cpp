// Which wgmma kernels there are, where planning chooses them, and how they are launched.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <regex>
#include <set>
#include <string>

#include "abi/attention_persistent.h"
#include "families/attention_wgmma/budget.hpp"
#include "families/attention_wgmma/family.hpp"
#include "families/attention_wgmma/kernel.hpp"
#include "planner/launch.hpp"
#include "planner/launch_facts.hpp"
#include "planner/plan.hpp"
#include "planner/plan_json.hpp"
#include "planner/repository_tuning.hpp"
#include "planner/schema_errors.hpp"
#include "problem/expect.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using families::Backend;
using families::KernelConfig;
using families::attention_wgmma::QueryTiling;
using families::attention_wgmma::tiling_of;
using Wgmma = families::attention_wgmma::Kernel;

namespace {

AttentionSpec spec_of(std::int64_t qk, std::int64_t vo) {
    return {.dtype = DType::bf16, .head_dim_qk = qk, .head_dim_vo = vo, .q_heads = 32, .kv_heads = 8};
}

AttentionSpec paged(AttentionSpec spec, std::int64_t page_size) {
    spec.kv = KvStorage::paged;
    spec.page_size = page_size;
    return spec;
}

families::DeviceTraits hopper() { return families::traits_of(90); }

planner::Plan plan_of(const AttentionSpec& spec, const PlanSizes& sizes, int sm = 90) {
    return planner::make_plan(problem::validate(spec, sizes), families::traits_of(sm),
                              planner::repository_tuning());
}

std::vector<families::Candidate> wgmma_kernels(const AttentionSpec& spec) {
    std::vector<Refusal> rejected;
    return families::attention_wgmma::family().candidates(problem::validate(spec, {}).spec, hopper(),
                                                          planner::repository_tuning(), rejected);
}

// That of the most rows.
KernelConfig wgmma_kernel(const AttentionSpec& spec) {
    const std::vector<families::Candidate> kernels = wgmma_kernels(spec);
    REQUIRE(!kernels.empty());
    return kernels.back().kernel;
}

std::vector<KernelConfig> candidates(const AttentionSpec& spec) {
    return families::attention_wgmma::family().attention()->tunable(problem::validate(spec, {}).spec,
                                                                    hopper());
}

// Why sm_90 has no kernel for the spec: one reason for the whole backend.
std::string refusal(const AttentionSpec& spec) {
    std::vector<Refusal> rejected;
    CHECK(families::attention_wgmma::family()
              .candidates(problem::validate(spec, {}).spec, hopper(), planner::repository_tuning(), rejected)
              .empty());
    CHECK(candidates(spec).empty());
    REQUIRE(rejected.size() == 1);
    CHECK(rejected[0].candidate == "wgmma");
    return rejected[0].reason;
}

void check_legal(const KernelConfig& kernel) {
    CAPTURE(kernel.name());
    const auto constants = kernel.as<Wgmma>();
    REQUIRE(kernel.family == &families::attention_wgmma::family());
    REQUIRE(kernel.target == "sm_90a");
    REQUIRE(kernel.shared_bytes <= hopper().shared_bytes_per_block);
    REQUIRE(kernel.shared_bytes == abi::persistent_layout(constants.shape()).total);
    REQUIRE(families::attention_wgmma::registers_of(constants) <= constants.consumer_registers);
    // What setmaxnreg hands out is no more than the CTA was launched with.
    const int consumers = kernel.tile_q() / 64;
    const int producer = constants.producer_registers, consumer = constants.consumer_registers;
    REQUIRE(constants.consumers == consumers);
    REQUIRE(producer + consumers * consumer <= (consumers + 1) * kernel.registers_ceiling());
    REQUIRE(producer % 8 + consumer % 8 == 0);
    REQUIRE(kernel.threads == (consumers + 1) * 128);
    REQUIRE(kernel.registers_ceiling() == (consumers == 2 ? 168 : 128));
    REQUIRE(kernel.tile_kv() % 16 == 0);
    REQUIRE(kernel.ctas_per_sm == 1);
}

}  // namespace

TEST_CASE("the table of registers by role is what kernels have", "[planner][wgmma]") {
    // Registers at launch, then of producers, consumers, and of the role that makes weights or widens.
    std::set<std::vector<int>> stated, planned;
    std::ifstream header(ATTNSMITH_SOURCE_DIR "/runtime/families/attention_wgmma/budget.hpp");
    const std::regex row(R"(//   (\d.*?)  +(\d+) +(\d+) +(\d+)(?: \(half of O\))?(?: +(\d+))?)");
    std::smatch match;
    for (std::string line; std::getline(header, line);) {
        if (!std::regex_match(line, match, row)) continue;
        std::vector<int> registers;
        for (std::size_t i = 2; i < match.size(); ++i)
            registers.push_back(match[i].matched ? std::stoi(match[i].str()) : 0);
        CHECK(stated.insert(registers).second);
    }
    CHECK(stated.size() == 7);

    std::vector<AttentionSpec> specs;
    for (const std::int64_t dim : {64, 128, 192, 256, 512}) {
        for (const bool bitwise : {false, true}) {
            AttentionSpec spec = spec_of(dim, dim);
            if (bitwise) spec.consistency = Consistency::bitwise;
            specs.push_back(spec);
        }
        AttentionSpec stored = spec_of(dim, dim);
        stored.kv_dtype = DType::e4m3;
        specs.push_back(stored);
    }
    AttentionSpec latent{
        .op = Op::mla, .head_dim_ckv = 512, .head_dim_kpe = 64, .q_heads = 128, .scale = 0.1};
    specs.push_back(latent);
    latent.kv_dtype = DType::e4m3;
    specs.push_back(latent);
    for (const AttentionSpec& spec : specs) {
        for (const families::Candidate& candidate : wgmma_kernels(spec)) {
            const auto kernel = candidate.kernel.as<Wgmma>();
            const auto registers =
                families::attention_wgmma::registers_by_role(kernel, candidate.kernel.ctas_per_sm);
            planned.insert({candidate.kernel.registers_ceiling(), registers.producer, registers.consumer,
                            std::max(registers.scores, registers.dequantizer)});
        }
    }
    for (const std::vector<int>& registers : stated) {
        CAPTURE(registers);
        CHECK(planned.contains(registers));
    }
}

TEST_CASE("sm_90 has a wgmma kernel for every head dim from 64 to 256", "[planner][wgmma]") {
    for (std::int64_t qk = 64; qk <= 256; qk += 8) {
        for (const std::int64_t vo : {qk, std::int64_t{64}, std::int64_t{128}, std::int64_t{256}}) {
            for (const Mask mask : {Mask::full, Mask::causal}) {
                AttentionSpec spec = spec_of(qk, vo);
                spec.mask = mask;
                for (const AttentionSpec& stored : {spec, paged(spec, 16)}) {
                    CAPTURE(qk, vo, stored.kv == KvStorage::paged);
                    const std::vector<families::Candidate> tuned = wgmma_kernels(stored);
                    const std::vector<KernelConfig> legal = candidates(stored);
                    REQUIRE(std::ranges::any_of(tuned, [](const auto& one) { return !one.up_to; }));
                    // Beside the table's there is one for few rows, whose CTAs take shares.
                    REQUIRE(std::ranges::count_if(tuned, [](const auto& one) {
                                return one.kernel.template as<Wgmma>().shares;
                            }) == 1);
                    for (const families::Candidate& one : tuned) {
                        if (one.kernel.as<Wgmma>().shares) {
                            CHECK(one.source == families::TileSource::model);
                            CHECK(one.kernel.tile_q() == 64);
                            CHECK(one.up_to == 128);
                            CHECK(families::takes(one.kernel, planner::SplitPolicy::shares));
                            CHECK(!families::takes(one.kernel, planner::SplitPolicy::chunks));
                            continue;
                        }
                        CHECK(one.source == families::TileSource::table);
                        CHECK(!families::takes(one.kernel, planner::SplitPolicy::shares));
                        REQUIRE(std::count(legal.begin(), legal.end(), one.kernel) == 1);
                    }
                    for (const KernelConfig& kernel : legal) check_legal(kernel);
                }
            }
        }
    }
}

TEST_CASE("what wgmma cannot serve is refused in one line", "[planner][wgmma]") {
    using test::contains;
    for (const families::DeviceTraits& device : families::known_devices()) {
        if (device.sm == 90) continue;
        const auto set = planner::kernel_set(problem::validate(spec_of(128, 128), {}).spec, device.sm,
                                             planner::repository_tuning());
        const std::vector<KernelConfig> kernels = set.kernels();
        CHECK(std::count_if(kernels.begin(), kernels.end(),
                            [](const KernelConfig& k) { return k.backend() == Backend::wgmma; }) == 0);
        CHECK(std::count_if(set.rejected.begin(), set.rejected.end(), [&](const Refusal& r) {
                  return r.candidate == "wgmma" &&
                         r.reason == "needs sm_90; this is sm_" + std::to_string(device.sm);
              }) == 1);
    }
    AttentionSpec spec = spec_of(128, 128);
    spec.alignment = 8;
    CHECK(contains(refusal(spec), "alignment 8"));
    spec = spec_of(128, 128);
    spec.precision = Precision::high;
    CHECK(contains(refusal(spec), "precision"));
    spec = spec_of(256, 256);
    spec.consistency = Consistency::bitwise;
    CHECK(contains(refusal(spec), "no room for the states of rows"));
    CHECK(contains(refusal(spec_of(56, 128)), "head dims 56 and 128"));
    CHECK(contains(refusal(spec_of(128, 56)), "head dims 128 and 56"));
}

TEST_CASE("a box of keys divides the tile and the page", "[planner][wgmma]") {
    for (const std::int64_t page_size : {16, 32, 48, 64, 100 * 16, 256, 1 << 20}) {
        const std::vector<KernelConfig> kernels = candidates(paged(spec_of(128, 128), page_size));
        CHECK(!kernels.empty());
        for (const KernelConfig& kernel : kernels) {
            const int keys = families::attention_wgmma::box_keys(kernel.as<Wgmma>(), page_size);
            REQUIRE(page_size % keys == 0);
            REQUIRE(kernel.tile_kv() % keys == 0);
            REQUIRE(keys % 8 == 0);
            REQUIRE(keys <= 256);
        }
    }
    const std::vector<KernelConfig> dense = candidates(spec_of(64, 64));
    CHECK(!dense.empty());
    for (const KernelConfig& kernel : dense)
        REQUIRE(families::attention_wgmma::box_keys(kernel.as<Wgmma>(), 0) == kernel.tile_kv());
}

TEST_CASE("keys of pages that are no multiple of the least box are gathered", "[planner][wgmma]") {
    for (const std::int64_t page_size : {1, 2, 3, 4, 7, 8, 12, 24, 100, 1001}) {
        const KernelConfig kernel = wgmma_kernel(paged(spec_of(128, 128), page_size));
        CHECK(kernel.as<Wgmma>().gather);
        CHECK(kernel.name().find("gather") != std::string::npos);
    }
    CHECK(!wgmma_kernel(paged(spec_of(128, 128), 16)).as<Wgmma>().gather);
    CHECK(!wgmma_kernel(spec_of(128, 128)).as<Wgmma>().gather);
}

TEST_CASE("on sm_90 prefills are those kernels' of wgmma that draw tiles, and decodes never are",
          "[planner][wgmma]") {
    const auto draws = [](const KernelConfig& kernel) {
        return kernel.backend() == Backend::wgmma && !kernel.as<Wgmma>().shares;
    };
    for (const auto& [qk, vo] : {std::pair{64, 64}, {96, 96}, {128, 128}, {192, 128}, {256, 256}}) {
        for (const Mask mask : {Mask::full, Mask::causal}) {
            AttentionSpec spec = spec_of(qk, vo);
            spec.mask = mask;
            for (const AttentionSpec& stored : {spec, paged(spec, 16)}) {
                for (const std::int64_t batch : {1, 8, 64}) {
                    for (const std::int64_t kv_len : {512, 4096, 65536}) {
                        CAPTURE(qk, vo, batch, kv_len);
                        for (const std::int64_t q_len : {1, 4, 8, 12})  // 4 to 48 packed rows
                            REQUIRE(!draws(
                                plan_of(stored, {batch, q_len, kv_len}).kernel(planner::Role::attention)));
                    }
                    for (const std::int64_t len : {1024, 4096, 16384})
                        REQUIRE(draws(plan_of(stored, {batch, len, len}).kernel(planner::Role::attention)));
                }
            }
        }
    }
}

TEST_CASE(
    "on sm_90 mma's kernels beyond decode's are not compiled beside wgmma's, at narrow head dims but one",
    "[planner][wgmma]") {
    const auto of_mma = [](const AttentionSpec& spec, std::string_view reason) {
        const planner::Plan plan = plan_of(spec, {8, 4096, 4096});
        const auto count = [&](const std::vector<Refusal>& refusals) {
            return std::ranges::count_if(refusals, [&](const Refusal& one) {
                return one.candidate.starts_with("attention mma") && one.reason.starts_with(reason);
            });
        };
        return count(plan.rejected) + count(plan.unused);
    };
    constexpr std::string_view kLeft = "tiles of more than 16 rows are wgmma's alone";
    for (const auto& [qk, vo] :
         {std::pair{96, 96}, {128, 128}, {192, 128}, {256, 256}, {384, 256}, {512, 512}}) {
        CAPTURE(qk, vo);
        CHECK(of_mma(spec_of(qk, vo), kLeft) > 0);
        CHECK(of_mma(spec_of(qk, vo), "estimated") == 1);  // decode's
        for (const KernelConfig& kernel :
             planner::kernel_set(spec_of(qk, vo), 90, planner::repository_tuning()).kernels())
            CHECK((kernel.backend() != Backend::mma || kernel.tile_q() == 16));
    }
    CHECK(of_mma(spec_of(64, 64), kLeft) == 0);
    CHECK(of_mma(spec_of(64, 64), "tiles of more than 64 rows are wgmma's alone") == 1);
    // Where wgmma has no tile for many rows, or for few, mma's are there as before.
    const auto mma_tiles = [](const AttentionSpec& spec, int sm, const families::TuningTable& tuning) {
        const std::vector<KernelConfig> kernels = planner::kernel_set(spec, sm, tuning).kernels();
        return std::ranges::count_if(kernels,
                                     [](const KernelConfig& one) { return one.backend() == Backend::mma; });
    };
    CHECK(mma_tiles(spec_of(128, 128), 90, families::TuningTable(std::vector<families::TuningEntry>{})) > 1);
    CHECK(mma_tiles(spec_of(128, 128), 100, planner::repository_tuning()) > 1);
}

TEST_CASE("head dims above 256 have a kernel of wgmma that draws tiles, and one for few rows with shares",
          "[planner][wgmma]") {
    const auto attention_of = [](const AttentionSpec& spec, const PlanSizes& sizes) {
        return plan_of(spec, sizes).kernel(planner::Role::attention);
    };
    const AttentionSpec spec = spec_of(512, 512);  // four query heads to a KV head
    const KernelConfig many = attention_of(spec, {1, 4096, 4096}), few = attention_of(spec, {16, 16, 8192}),
                       decode = attention_of(spec, {16, 1, 8192});
    CHECK((many.backend() == Backend::wgmma && !many.as<Wgmma>().shares));
    CHECK((few.backend() == Backend::wgmma && few.as<Wgmma>().shares));
    CHECK(many.name() != few.name());
    CHECK(decode.backend() == Backend::mma);
    // Others than whole panels for either half of O, and rows that are cut, are mma's.
    for (const auto& [qk, vo] : {std::pair{320, 320}, {512, 320}, {264, 512}, {448, 384}})
        CHECK(attention_of(spec_of(qk, vo), {1, 4096, 4096}).backend() == Backend::mma);
    AttentionSpec cut = spec;
    cut.consistency = Consistency::bitwise;
    CHECK(attention_of(cut, {1, 4096, 4096}).backend() == Backend::mma);
    for (const auto& [qk, vo] : {std::pair{384, 384}, {512, 128}, {128, 512}})
        CHECK(attention_of(spec_of(qk, vo), {1, 4096, 4096}).backend() == Backend::wgmma);
}

TEST_CASE("a wgmma launch has as many CTAs as the device has SMs, or fewer", "[planner][wgmma]") {
    const planner::Plan plan = plan_of(spec_of(128, 128), {8, 4096, 4096});
    REQUIRE(plan.kernel(planner::Role::attention).backend() == Backend::wgmma);
    REQUIRE(plan.split == planner::Split{});
    const auto launch_of = [&](std::int64_t batch, std::int64_t q_len) {
        return test::launch_facts(
            plan, {.batch = batch, .q_tokens = batch * q_len, .max_q_len = q_len, .max_kv_len = 4096});
    };
    CHECK(launch_of(8, 4096).tiles == 8 * 128);  // 32 tokens of 4 heads
    CHECK(launch_of(8, 4096).schedule.tiles.of_each == 128);
    CHECK(launch_of(8, 4096).items == 8 * 128 * 8);
    CHECK(launch_of(8, 4096).schedule.draws == 8 * 128 * 8);
    CHECK(launch_of(8, 4096).grid == plan.device.sm_count);
    CHECK(launch_of(1, 33).schedule.draws == 2 * 8);
    CHECK(launch_of(1, 33).grid == 2 * 8);
    CHECK(launch_of(0, 0).grid == 0);
    const planner::Plan mma = plan_of(spec_of(128, 128), {8, 4096, 4096}, 89);
    const test::LaunchFacts many =
        test::launch_facts(mma, {.batch = 8, .q_tokens = 8 * 4096, .max_q_len = 4096, .max_kv_len = 4096});
    CHECK(many.grid == many.items);
    CHECK(many.grid > mma.device.sm_count);
}

TEST_CASE("a stream is a KV head, of a sequence where all have as many tiles", "[planner][wgmma]") {
    const planner::Plan plan = plan_of(spec_of(128, 128), {8, 4096, 4096});
    test::LaunchFacts launch =
        test::launch_facts(plan, {.batch = 3, .q_tokens = 3 * 65, .max_q_len = 65, .max_kv_len = 4096});
    CHECK(launch.tiles == 3 * 3);
    CHECK(launch.schedule.tiles.of_each == 3);
    CHECK(launch.schedule.draws == 3 * 3 * 8);
    CHECK(launch.grid == 3 * 3 * 8);
    // At most 1000 / 32 + 6 tiles, which are 37.
    launch = test::launch_facts(plan, {.batch = 6, .q_tokens = 1000, .max_q_len = 900, .max_kv_len = 4096});
    CHECK(launch.tiles == 37);
    CHECK(launch.schedule.tiles.of_each == 0);
    CHECK(launch.schedule.draws == 37 * 8);
    CHECK(launch.grid == plan.device.sm_count);
}

TEST_CASE("a CTA draws a long and a short tile where a mask makes them so, and single ones in the end",
          "[planner][wgmma]") {
    const auto launch_of = [](const AttentionSpec& spec, std::int64_t batch, std::int64_t q_len) {
        planner::Plan plan = plan_of(spec, {8, 4096, 4096});
        REQUIRE(plan.kernel(planner::Role::attention).backend() == Backend::wgmma);
        test::set_tile_q(plan.steps.front().kernel, 128);  // whatever the table says
        REQUIRE(plan.device.sm_count == 132);
        return test::launch_facts(
            plan, {.batch = batch, .q_tokens = batch * q_len, .max_q_len = q_len, .max_kv_len = 4096});
    };
    AttentionSpec causal = spec_of(128, 128), left = causal, right = causal;
    causal.mask = Mask::causal;
    left.window_left = 1023;
    right.window_right = 1023;
    for (const AttentionSpec& spec : {causal, left, right}) {
        // 64 tokens of 4 heads: 2 tiles. Streams of 8 KV heads.
        test::LaunchFacts launch = launch_of(spec, 16, 64);
        CHECK(launch.schedule.draws == 256);  // about two for each SM: all are single
        CHECK(launch.schedule.paired_draws == 0);
        CHECK(launch.schedule.mixed_streams == 128);
        CHECK(launch.grid == 132);
        launch = launch_of(spec, 64, 64);
        CHECK(launch.schedule.mixed_streams == 132);
        CHECK(launch.schedule.paired_draws == 512 - 132);
        CHECK(launch.schedule.draws == 512 - 132 + 264);
        // 65 tokens: 3 tiles, of which one is left over by the twos.
        launch = launch_of(spec, 30, 65);
        CHECK(launch.schedule.mixed_streams == 88);
        CHECK(launch.schedule.paired_draws == (240 - 88) * 2);
        CHECK(launch.schedule.draws == (240 - 88) * 2 + 264);
        CHECK(launch_of(spec, 0, 0).grid == 0);
    }
    const test::LaunchFacts full = launch_of(spec_of(128, 128), 64, 64);
    CHECK(full.schedule.paired_draws == 0);
    CHECK(full.schedule.mixed_streams == 1);  // a stream's tiles are neighbours
    CHECK(full.schedule.draws == 1024);
    CHECK(full.grid == 132);
}

TEST_CASE("the items of a persistent launch are counted in 32 bits", "[planner][wgmma]") {
    AttentionSpec spec = spec_of(128, 128);
    spec.q_heads = spec.kv_heads = 4096;
    const planner::Plan plan = plan_of(spec, {8, 4096, 4096});
    REQUIRE(plan.kernel(planner::Role::attention).backend() == Backend::wgmma);
    const planner::Launch launch =
        planner::launch_of(plan, {.batch = 1 << 20, .q_tokens = 1 << 20, .max_q_len = 1, .max_kv_len = 1});
    CHECK(launch.extents.front().ctas == plan.device.sm_count);
    CHECK(test::refused([&] { planner::check_grid(plan, launch); }).field() == "batch");
}

TEST_CASE("a wgmma tile holds whole tokens", "[planner][wgmma]") {
    int tile_q = 128;
    const auto rows = [&](std::int64_t group) { return tiling_of(tile_q, {.group = group}).rows; };
    CHECK(rows(1) == 128);
    CHECK(rows(4) == 128);
    CHECK(rows(7) == 126);
    CHECK(rows(40) == 80);
    CHECK(rows(64) == 128);
    tile_q = 192;
    CHECK(rows(7) == 189);
    CHECK(rows(64) == 192);
    AttentionSpec spec = spec_of(128, 128);
    spec.q_heads = 56;
    planner::Plan plan = plan_of(spec, {1, 4096, 4096});
    test::set_tile_q(plan.steps.front().kernel, 128);
    const test::LaunchFacts launch =
        test::launch_facts(plan, {.batch = 1, .q_tokens = 4096, .max_q_len = 4096, .max_kv_len = 4096});
    CHECK(launch.tiles == 228);  // of 18 tokens
}

TEST_CASE("a group is divided where tiles of its parts are fewer", "[planner][wgmma]") {
    int tile_q = 128;
    const auto part = [&](std::int64_t group, std::int64_t q_len, int bounds = 0) {
        const std::int64_t keys = bounds > 0 ? q_len / 2 : q_len;
        const QueryTiling tiling =
            tiling_of(tile_q, {.group = group, .q_len = q_len, .keys = keys, .bounds = bounds});
        REQUIRE(tiling.group * tiling.shares >= group);
        REQUIRE(tiling.group * (tiling.shares - 1) < group);
        REQUIRE(tiling.group <= abi::kWgmmaRows);
        REQUIRE(tiling.rows % tiling.group == 0);
        REQUIRE(tiling.rows <= tile_q);
        return tiling.group;
    };
    for (const std::int64_t group : {1, 2, 8, 16, 32, 64}) {  // no row is wasted
        for (const std::int64_t q_len : {0, 1, 3, 100, 4096}) CHECK(part(group, q_len) == group);
    }
    CHECK(part(7, 4096) == 7);   // 228 tiles; of 7 times single heads, 224
    CHECK(part(33, 4096) == 3);  // 42 tokens a tile; single heads save one tile in 49 more
    CHECK(part(40, 4096) == 8);
    CHECK(part(48, 4096) == 16);
    CHECK(part(96, 4096) == 32);
    CHECK(part(71, 4096) == 9);
    CHECK(part(128, 4096) == 64);
    // A causal tile of more tokens has more keys that most of them do not see.
    CHECK(part(33, 512) == 2);
    CHECK(part(33, 512, 1) == 9);
    CHECK(part(7, 512, 1) == 7);
    CHECK(part(48, 512, 1) == 16);
    // Few queries have the fewest tiles where parts are largest.
    for (const std::int64_t group : {7, 33, 40, 48}) {
        for (const std::int64_t q_len : {0, 1, 2}) CHECK(part(group, q_len) == group);
    }
    CHECK(part(96, 1) == 48);
    CHECK(part(128, 1) == 64);
    CHECK(part(71, 1) == 36);
    CHECK(part(48, 3) == 48);
    CHECK(part(48, 8) == 16);
    // Three warpgroups have three tokens of 48 heads.
    tile_q = 192;
    CHECK(part(48, 3) == 48);
    CHECK(part(48, 4096) == 16);
    CHECK(tiling_of(tile_q, {.group = 48, .q_len = 4096}).tiles(4096) == 3 * 342);
}

TEST_CASE("the last part of a group may have fewer heads", "[planner][wgmma]") {
    const auto tiling = [](std::int64_t group, std::int64_t q_len) {
        return tiling_of(64, {.group = group, .q_len = q_len, .keys = 4096});
    };
    CHECK(tiling(71, 1) == QueryTiling{.shares = 2, .group = 36, .rows = 36});  // 36 heads and 35
    CHECK(tiling(64, 1) == QueryTiling{.shares = 1, .group = 64, .rows = 64});
    CHECK(tiling(65, 1) == QueryTiling{.shares = 2, .group = 33, .rows = 33});
    CHECK(tiling(131, 1) == QueryTiling{.shares = 3, .group = 44, .rows = 44});
    for (std::int64_t group = 1; group <= 200; ++group) {
        for (const std::int64_t q_len : {1, 2, 5, 100}) {
            const QueryTiling found = tiling(group, q_len);
            CAPTURE(group, q_len, found.shares, found.group);
            // Every part has a head, and a tile whole tokens.
            CHECK((found.shares - 1) * found.group < group);
            CHECK(found.shares * found.group >= group);
            CHECK(found.rows == abi::kWgmmaRows / found.group * found.group);
        }
    }
    // Eight parts of 9 heads, the last of 8, fill tiles nearly as well as single heads, with fewer tokens
    // each.
    CHECK(tiling(71, 4096) == QueryTiling{.shares = 8, .group = 9, .rows = 63});
}

TEST_CASE("decode of a prime number of heads goes to wgmma", "[planner][wgmma]") {
    AttentionSpec spec = spec_of(64, 64);
    spec.q_heads = 71, spec.kv_heads = 1;
    spec.kv = KvStorage::paged, spec.page_size = 16;
    const planner::Plan plan = plan_of(spec, {64, 1, 4096});
    CHECK(plan.kernel(planner::Role::attention).backend() == Backend::wgmma);
    const test::LaunchFacts launch =
        test::launch_facts(plan, {.batch = 64, .q_tokens = 64, .max_q_len = 1, .max_kv_len = 4096});
    CHECK(launch.kv_head_shares == 2);
}

TEST_CASE("few rows that are cut are divided, whatever their number and their group", "[planner][wgmma]") {
    const auto ctas = [](std::int64_t q_heads, std::int64_t kv_heads, std::int64_t q_len) {
        AttentionSpec spec = spec_of(128, 128);
        spec.q_heads = q_heads, spec.kv_heads = kv_heads;
        spec.kv = KvStorage::paged, spec.page_size = 16;
        spec.mask = Mask::causal;
        spec.consistency = Consistency::bitwise;
        return test::launch_facts(plan_of(spec, {1, q_len, 131072}),
                                  {.batch = 1, .q_tokens = q_len, .max_q_len = q_len, .max_kv_len = 131072})
            .grid;
    };
    for (const std::int64_t q_len : {1, 8, 32, 33, 64, 100}) {
        CAPTURE(q_len);
        CHECK(ctas(32, 8, q_len) == 264);
    }
    CHECK(ctas(71, 1, 2) == 264);
    CHECK(ctas(131, 1, 1) == 264);
    CHECK(ctas(142, 2, 1) == 264);
    // A long prefill has tiles enough without that.
    AttentionSpec spec = spec_of(128, 128);
    spec.consistency = Consistency::bitwise;
    CHECK(plan_of(spec, {4, 4096, 4096}).kernel(planner::Role::attention).tile_q() > abi::kWgmmaRows);
}

TEST_CASE("wgmma serves groups of any size", "[planner][wgmma]") {
    for (const std::int64_t group : {1, 2, 7, 8, 33, 48, 64, 65, 71, 128}) {
        AttentionSpec spec = spec_of(128, 128);
        spec.q_heads = 2 * group, spec.kv_heads = 2;
        planner::Plan plan = plan_of(spec, {4, 4096, 4096});
        CAPTURE(group);
        REQUIRE(plan.kernel(planner::Role::attention).backend() == Backend::wgmma);
        const planner::Plan divided =
            planner::with_attention(plan, plan.kernel(planner::Role::attention),
                                    {planner::SplitPolicy::chunks, 256, 16}, planner::repository_tuning());
        for (const std::int64_t q_len : {1, 17, 4096}) {
            const problem::BoundShape shape{
                .batch = 4, .q_tokens = 4 * q_len, .max_q_len = q_len, .max_kv_len = 4096};
            const test::LaunchFacts launch = test::launch_facts(divided, shape);
            const QueryTiling tiling = tiling_of(plan.kernel(planner::Role::attention).tile_q(),
                                                 {.group = group, .q_len = q_len, .keys = 4096});
            CHECK(launch.kv_head_shares == tiling.shares);
            CHECK(launch.tiles * tiling.shares == 4 * tiling.tiles(q_len));
            CHECK(launch.split.chunks() == 16);
            CHECK(launch.items == launch.tiles * 2 * tiling.shares * 16);
            // What is merged is the same whatever the parts: 16 partial results of each query head's row.
            CHECK(launch.rows == 4 * q_len * 2 * group);
            CHECK(launch.merge_grid > 0);
            CHECK(launch.workspace_bytes == abi::kZeroedBytes + 16 * launch.rows * (128 + 2) * 4);
        }
    }
}

TEST_CASE("a plan's JSON tells wgmma's warps apart", "[planner][wgmma]") {
    const auto json_of = [](const planner::Plan& plan) {
        const std::vector states(plan.steps.size(), planner::CacheState{.key = std::string(32, '0')});
        return nlohmann::json::parse(planner::to_json(plan, states).dump());
    };
    const auto kernel = [&](int sm) {
        return json_of(plan_of(spec_of(128, 128), {8, 4096, 4096}, sm))["kernels"][0];
    };
    CHECK(kernel(90)["backend"] == "wgmma");
    CHECK(kernel(90)["template"] == "attention_wgmma");
    CHECK(kernel(90)["target"] == "sm_90a");
    CHECK(kernel(90)["tuning"] == "table");
    CHECK(kernel(90)["warps"] == kernel(90)["tile_q"].get<int>() / 16 + 4);
    CHECK(kernel(90)["producer_warps"] == 4);
    CHECK(kernel(89)["tuning"] == "model");
    CHECK(!kernel(89).contains("producer_warps"));
    CHECK(!kernel(90).contains("kv_head_shares"));
    AttentionSpec spec = spec_of(128, 128);
    spec.q_heads = 128, spec.kv_heads = 1;
    const nlohmann::json json = json_of(plan_of(spec, {1, 4096, 4096}));
    CHECK(test::schema_errors("plan.schema.json", json) == "");
    CHECK(json["kernels"][0]["kv_head_shares"] == 2);
}
