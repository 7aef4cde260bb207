#include "planner/plan.hpp"
#include "abi/attention_arguments.h"
#include "abi/attention_cuts.h"
#include "families/attention_mma/kernel.hpp"
#include "planner/launch.hpp"
#include "planner/repository_tuning.hpp"

#include <nlohmann/json.hpp>

#include <random>
#include <set>

#include "planner/launch_facts.hpp"
#include "planner/plan_json.hpp"
#include "planner/schema_errors.hpp"
#include "problem/expect.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using planner::Split;
using planner::SplitPolicy;

namespace {

AttentionSpec llama() {
    return {.dtype = DType::bf16, .head_dim_qk = 128, .q_heads = 32, .kv_heads = 8, .mask = Mask::causal};
}

AttentionSpec merge(std::int64_t head_dim) {
    return {.op = Op::merge, .head_dim_vo = head_dim, .q_heads = 6};
}

planner::Plan plan_of(const AttentionSpec& spec, const PlanSizes& sizes, int sm = 90) {
    return planner::make_plan(problem::validate(spec, sizes), families::traits_of(sm),
                              planner::repository_tuning());
}

std::string schema_errors(const nlohmann::json& document) {
    return test::schema_errors("plan.schema.json", document);
}

const planner::CacheState kMiss{.key = std::string(32, '0')};
const planner::CacheState kHit{.key = std::string(32, 'a'),
                               .hit = true,
                               .toolchain = "13.0.88",
                               .compiled = planner::CompiledResources{168, 0, 1024, 50000, 250.0}};

nlohmann::json json_of(const planner::Plan& plan) {
    const planner::CacheState states[] = {kHit, kMiss};
    return nlohmann::json::parse(planner::to_json(plan, states).dump());
}

}  // namespace

TEST_CASE("a plan's JSON meets its schema on every SM", "[planner]") {
    for (const families::DeviceTraits& device : families::known_devices()) {
        for (const PlanSizes& sizes :
             {PlanSizes{8, 1, 4096}, PlanSizes{1, 4096, 4096}, PlanSizes{1, 1, 131072}, PlanSizes{1, 0, 0}}) {
            REQUIRE(schema_errors(json_of(plan_of(llama(), sizes, device.sm))) == "");
        }
    }
}

TEST_CASE("the schema refuses what a plan must not say", "[planner]") {
    nlohmann::json json = json_of(plan_of(llama(), {8, 1, 4096}));
    const nlohmann::json good = json;
    json.erase("rejected");
    CHECK(schema_errors(json) != "");
    json = good;
    json["kernels"][0]["backend"] = "magic";
    CHECK(schema_errors(json) != "");
    json = good;
    json["kernels"][0]["cache"]["key"] = "short";
    CHECK(schema_errors(json) != "");
    json = good;
    json["request"]["o_dtype"] = "int32";
    CHECK(schema_errors(json) != "");
    json = good;
    json["split_kv"] = {{"policy", "chunks"}};
    CHECK(schema_errors(json) != "");
    json["split_kv"] = {{"policy", "shares"}};
    CHECK(schema_errors(json) != "");
    json["split_kv"] = {{"policy", "halves"}};
    CHECK(schema_errors(json) != "");
    json = good;
    json["request"].erase("mask");  // only a merge has none
    CHECK(schema_errors(json) != "");
    json["request"]["op"] = "merge";
    CHECK(schema_errors(json) == "");
}

TEST_CASE("a merge's plan meets the schema on every SM and names one kernel", "[planner][merge]") {
    for (const families::DeviceTraits& device : families::known_devices()) {
        for (std::int64_t dim = 8; dim <= 256; dim += 8) {
            const planner::Plan plan = plan_of(merge(dim), {2, 100, 1}, device.sm);
            CAPTURE(device.sm, dim);
            REQUIRE(plan.find(planner::Role::attention) == nullptr);
            const families::KernelConfig& merge = plan.kernel(planner::Role::merge_states);
            REQUIRE(merge.backend() == families::Backend::cuda_core);
            REQUIRE(merge.ctas_per_sm * merge.threads <= device.threads_per_sm);
            const nlohmann::json json = json_of(plan);
            REQUIRE(schema_errors(json) == "");
            REQUIRE(json["kernels"].size() == 1);
            REQUIRE(json["kernels"][0]["role"] == "merge");
            REQUIRE(json["split_kv"] == nlohmann::json{{"policy", "none"}});
            REQUIRE(json["request"]["op"] == "merge");
            REQUIRE(!json["request"].contains("mask"));
        }
    }
}

TEST_CASE("a merge's grid covers its rows, and no more than a grid has", "[planner][merge]") {
    for (std::int64_t dim : {8, 64, 72, 128, 256}) {
        const planner::Plan plan = plan_of(merge(dim), {});
        const int tile_q = plan.kernel(planner::Role::merge_states).tile_q();
        for (std::int64_t tokens : {0, 1, 2, 31, 4096, 1 << 28}) {
            const test::LaunchFacts launch = test::launch_facts(plan, {.batch = 1, .q_tokens = tokens});
            REQUIRE(launch.rows == tokens * 6);
            REQUIRE(launch.merge_grid * tile_q >= launch.rows);
            REQUIRE((launch.merge_grid - 1) * tile_q < std::max<std::int64_t>(launch.rows, 1));
            REQUIRE(launch.grid == 0);
            REQUIRE(launch.workspace_bytes == 0);
        }
    }
    AttentionSpec wide = merge(256);
    wide.q_heads = 65536;
    const planner::Plan plan = plan_of(wide, {});
    const std::int64_t most =
        planner::kMostCtas * plan.kernel(planner::Role::merge_states).tile_q() / wide.q_heads;
    planner::check_grid(plan, planner::launch_of(plan, {.batch = 1, .q_tokens = most}));
    const planner::Launch beyond = planner::launch_of(plan, {.batch = 1, .q_tokens = most + 1});
    const InvalidRequest error = test::refused([&] { planner::check_grid(plan, beyond); });
    REQUIRE(error.field() == "q_tokens");
    REQUIRE(error.value() == std::to_string(most + 1));
    REQUIRE(error.accepted() == "at most " + std::to_string(most) + " in one merge of 65536 heads");
}

// As the README promises them.
TEST_CASE("a plan's tolerance is its dtype's", "[planner]") {
    AttentionSpec spec = llama();
    for (const auto& [dtype, tolerance] : {std::pair{DType::fp16, 1e-3}, {DType::bf16, 1e-2}}) {
        spec.dtype = dtype;
        const nlohmann::json numerics = json_of(plan_of(spec, {8, 1, 4096}))["numerics"];
        CHECK(numerics["atol"] == tolerance);
        CHECK(numerics["rtol"] == tolerance);
        CHECK(numerics["accumulate"] == "fp32");
    }
}

TEST_CASE("the same inputs give the same bytes of JSON", "[planner]") {
    // Parsed, bound and printed anew each time: nothing of an address or of an order in memory may show.
    const auto text = [](const char* request) {
        const AttentionRequest asked = parse_request(request);
        return json_of(plan_of(asked.spec, asked.sizes)).dump(2);
    };
    const std::string first =
        text(R"({"head_dim": 128, "q_heads": 32, "kv_heads": 8, "batch": 8, "q_len": 1024, "kv_len": 4096})");
    REQUIRE(first == text(R"({"kv_len": 4096, "q_len": 1024, "batch": 8, "kv_heads": 8, "q_heads": 32,
                              "head_dim_vo": 128, "head_dim_qk": 128})"));
    REQUIRE(
        first !=
        text(
            R"({"head_dim": 128, "q_heads": 32, "kv_heads": 8, "batch": 8, "q_len": 1025, "kv_len": 4096})"));
}

TEST_CASE("the query tile follows the packed rows", "[planner]") {
    CHECK(plan_of(llama(), {64, 1, 4096}).kernel(planner::Role::attention).tile_q() == 16);  // 4 packed rows
    CHECK(plan_of(llama(), {8, 4096, 4096}).kernel(planner::Role::attention).tile_q() >= 64);  // plenty
}

// Nobody else reads the keys of a sequence's only query tile, so that nothing is lost with the order of
// tiles, and lengths may differ more than the sizes say. So it is however many sequences there are.
TEST_CASE("the keys of a decode are divided into equal shares, a CTA each, and no merge follows",
          "[planner]") {
    for (const int sm : {80, 89, 90, 100, 120}) {
        for (const PlanSizes& sizes : {PlanSizes{8, 1, 1000}, PlanSizes{1, 1, 65536}, PlanSizes{64, 1, 4096},
                                       PlanSizes{4096, 4, 100}}) {
            CAPTURE(sm, sizes.batch, sizes.kv_len);
            const planner::Plan plan = plan_of(llama(), sizes, sm);
            const families::KernelConfig& kernel = plan.kernel(planner::Role::attention);
            CHECK(plan.split.policy == SplitPolicy::shares);
            CHECK(plan.split.parts == plan.device.sm_count * kernel.ctas_per_sm);
            CHECK(plan.split.keys == 128);
            CHECK(plan.steps.size() == 1);
        }
    }
}

TEST_CASE("a prefill that keeps every SM busy many times over is not split", "[planner]") {
    for (const Precision precision : {Precision::standard, Precision::high}) {
        for (const int sm : {80, 89, 90, 100}) {
            for (const std::int64_t head_dim : {40, 64, 128, 256}) {
                for (const std::int64_t tokens : {8192, 16384, 20000, 32768, 65536}) {
                    AttentionSpec spec = llama();
                    spec.head_dim_qk = spec.head_dim_vo = head_dim;
                    spec.mask = Mask::causal;
                    spec.precision = precision;
                    CAPTURE(to_string(precision), sm, head_dim, tokens);
                    CHECK(plan_of(spec, {1, tokens, tokens}, sm).split == Split{});
                }
            }
        }
    }
}

// A share may be longer than a row's keys: how many a row sees says nothing of how many CTAs the device has.
TEST_CASE("an attention chunk changes nothing of a decode's shares", "[planner]") {
    AttentionSpec chunked = llama();
    chunked.attention_chunk = 8192;
    const planner::Plan plan = plan_of(chunked, {1, 1, 131072});
    CHECK(plan.split == plan_of(llama(), {1, 1, 131072}).split);
    const nlohmann::json json = json_of(plan);
    CHECK(schema_errors(json) == "");
    CHECK(json["request"]["attention_chunk"] == 8192);
}

TEST_CASE("a chunk that is no shorter than the keys plans as none", "[planner]") {
    for (const PlanSizes& sizes : {PlanSizes{8, 1, 4096}, PlanSizes{1, 4096, 4096}, PlanSizes{1, 17, 9000}}) {
        AttentionSpec chunked = llama();
        chunked.attention_chunk = sizes.kv_len;
        const planner::Plan with = plan_of(chunked, sizes), without = plan_of(llama(), sizes);
        CHECK(with.split == without.split);
        CHECK(with.steps.front().kernel == without.steps.front().kernel);
    }
}

TEST_CASE("chunks are whole tiles, at absolute positions", "[planner]") {
    std::mt19937 random(7);
    int divided = 0;
    for (int i = 0; i < 2000; ++i) {
        const PlanSizes sizes{1, 64 + static_cast<std::int64_t>(random() % 200),
                              1 + static_cast<std::int64_t>(random() % 200000)};
        const planner::Plan plan = plan_of(llama(), sizes);
        const families::KernelConfig& kernel = plan.kernel(planner::Role::attention);
        if (plan.split.policy != SplitPolicy::chunks) continue;
        ++divided;
        REQUIRE(plan.split.keys % kernel.tile_kv() == 0);
        REQUIRE(plan.find(planner::Role::merge_splits) != nullptr);
        const problem::BoundShape shape{.batch = sizes.batch,
                                        .q_tokens = sizes.batch * sizes.q_len,
                                        .max_q_len = sizes.q_len,
                                        .max_kv_len = static_cast<std::int64_t>(random() % 4000000)};
        const test::LaunchFacts launch = test::launch_facts(plan, shape);
        if (launch.split.chunks() > 1) {
            REQUIRE(launch.split.chunks() <= 256);
            REQUIRE(launch.split.keys % kernel.tile_kv() == 0);
            REQUIRE(launch.split.keys * launch.split.parts >= shape.max_kv_len);
            REQUIRE(launch.split.keys * (launch.split.parts - 1) < shape.max_kv_len);
            REQUIRE(launch.workspace_bytes >=
                    abi::kZeroedBytes + launch.split.parts * launch.rows * (128 + 2) * 4);
        } else {
            REQUIRE(launch.workspace_bytes == abi::kZeroedBytes);
        }
    }
    REQUIRE(divided > 100);
}

TEST_CASE("shares are as many as have work, and their workspace is two query tiles of each", "[planner]") {
    std::mt19937 random(17);
    const auto up_to = [&](std::int64_t most) {
        return 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
    };
    const auto whole = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
    int fewer = 0;
    for (int i = 0; i < 2000; ++i) {
        const int sm = i % 2 == 0 ? 90 : 80;
        const planner::Plan plan = plan_of(llama(), {up_to(64), up_to(4), up_to(200000)}, sm);
        REQUIRE(plan.split.policy == SplitPolicy::shares);
        const families::KernelConfig& kernel = plan.kernel(planner::Role::attention);
        const std::int64_t batch = up_to(i % 3 == 0 ? 3 : 600), q_len = up_to(i % 5 == 0 ? 40 : 4);
        const problem::BoundShape shape{.batch = batch,
                                        .q_tokens = batch * q_len,
                                        .max_q_len = q_len,
                                        .max_kv_len = up_to(i % 2 ? 1000 : 4000000) - 1};
        const test::LaunchFacts launch = test::launch_facts(plan, shape);
        const std::int64_t shares = launch.split.parts;
        // A CTA for each share that can have its least keys, and no more than the device holds.
        const std::int64_t tiles = (q_len * 4 + kernel.tile_q() - 1) / kernel.tile_q() * batch * 8;
        const std::int64_t blocks =
            std::max<std::int64_t>(1, (shape.max_kv_len + kernel.tile_kv() - 1) / kernel.tile_kv());
        const std::int64_t least = plan.split.keys / kernel.tile_kv();
        REQUIRE(shares <= plan.split.parts);
        REQUIRE(shares >= std::min({plan.split.parts, tiles * blocks / least}));
        REQUIRE((shares == plan.split.parts || (shares - 1) * least < tiles * blocks));
        fewer += shares < plan.split.parts;
        REQUIRE(launch.grid == shares);
        REQUIRE(launch.merge_grid == 0);
        const std::int64_t rows = 2 * shares * kernel.tile_q();
        REQUIRE(launch.workspace_bytes == abi::kZeroedBytes + whole(rows * 128 * 4) + whole(rows * 8));
    }
    REQUIRE(fewer > 20);
}

TEST_CASE("a plan of shares says how many CTAs take one and what workspace they have", "[planner]") {
    const planner::Plan plan = plan_of(llama(), {8, 1, 4096});
    nlohmann::json json = json_of(plan);
    const nlohmann::json split = json["split_kv"];
    CHECK(split["policy"].get<std::string>() == "shares");
    CHECK(split["least_keys"].get<std::int64_t>() == plan.split.keys);
    CHECK(split["shares"].get<std::int64_t>() == plan.split.parts);
    CHECK(split["workspace_bytes"].get<std::int64_t>() > abi::kZeroedBytes);
    CHECK(split.size() == 4);
    CHECK(schema_errors(json) == "");
    for (const char* const member : {"least_keys", "shares", "workspace_bytes"}) {
        json["split_kv"] = split;
        json["split_kv"].erase(member);
        CHECK(schema_errors(json) != "");
    }
    json["split_kv"] = split;
    json["split_kv"]["shares"] = -1;
    CHECK(schema_errors(json) != "");
}

// What a row's bits follow from must not follow from sizes: every kernel of the set has the same instruction,
// and cuts alike.
TEST_CASE("consistency bitwise has kernels of its own, and a rule for its cuts without sizes", "[planner]") {
    const auto backend_of = [](int sm, std::int64_t head_dim) {
        const bool hopper = sm == 90 && head_dim >= 64 && head_dim <= 128;
        return hopper ? families::Backend::wgmma : families::Backend::mma;
    };
    for (const int sm : {80, 86, 89, 90, 100, 120}) {
        for (const std::int64_t head_dim : {8, 64, 96, 128, 192, 256}) {
            AttentionSpec spec = llama();
            spec.head_dim_qk = spec.head_dim_vo = head_dim;
            spec.mask = Mask::causal;
            spec.consistency = Consistency::bitwise;
            CAPTURE(sm, head_dim);
            std::set<std::string> cuts;
            for (const PlanSizes& sizes :
                 {PlanSizes{1, 1, 1}, PlanSizes{1, 1, 1 << 20}, PlanSizes{300, 1, 4096},
                  PlanSizes{8, 8, 8192}, PlanSizes{4, 4096, 4096}}) {
                const planner::Plan plan = plan_of(spec, sizes, sm);
                REQUIRE(plan.steps.size() == 1);
                const families::KernelConfig& kernel = plan.kernel(planner::Role::attention);
                REQUIRE(kernel.backend() == backend_of(sm, head_dim));
                CHECK(kernel.constants.integer("absolute_cuts") == 1);
                CHECK(kernel.constants.integer("warps_kv", 1) == 1);
                CHECK(abi::kLeastCut % kernel.tile_kv() == 0);
                CHECK(kernel.tile_kv() % abi::kSoftmaxKeys == 0);
                const nlohmann::json json = json_of(plan);
                CHECK(schema_errors(json) == "");
                CHECK(json["numerics"]["consistency"] == "bitwise");
                CHECK(json["split_kv"]["policy"] == "absolute");
                cuts.insert(json["split_kv"]["cuts"].dump());
            }
            CHECK(cuts.size() == 1);
            spec.consistency = Consistency::standard;
            for (const auto& kernel : planner::kernel_set(spec, sm, planner::repository_tuning()).kernels())
                CHECK(kernel.constants.integer("absolute_cuts") == 0);
        }
    }
}

// Above head dims of 256 a softmax step is a tile of keys, whose logits are added up slice by slice. Shared
// memory has no state of rows there, so that no SM has too little of it.
TEST_CASE("consistency bitwise is served at every wide head dim, on every SM alike", "[planner]") {
    std::vector<AttentionSpec> specs;
    for (std::int64_t ckv = 64; ckv <= 512; ckv += 64) {
        for (const std::int64_t kpe : {0, 8, 64}) {
            AttentionSpec spec{.op = Op::mla, .head_dim_ckv = ckv, .head_dim_kpe = kpe, .q_heads = 128};
            spec.scale = 0.1;
            specs.push_back(spec);
        }
    }
    for (const auto& [qk, vo] : {std::pair{264, 264}, {8, 512}, {512, 8}, {320, 512}, {512, 512}})
        specs.push_back({.head_dim_qk = qk, .head_dim_vo = vo, .q_heads = 8, .kv_heads = 2});
    std::set<std::pair<int, int>> steps;  // keys, and slices of them
    for (const families::DeviceTraits& device : families::known_devices()) {
        for (AttentionSpec spec : specs) {
            spec.consistency = Consistency::bitwise;
            for (const bool paged : {false, true}) {
                for (const int alignment : {2, 8}) {  // at 16 sm_90 has wgmma's for some
                    spec.alignment = alignment;
                    if (paged) spec.kv = KvStorage::paged, spec.page_size = 1;
                    if (paged) spec.index_dtype = DType::int64, spec.o_dtype = DType::fp32;
                    CAPTURE(device.sm, spec.head_dim_ckv, spec.head_dim_kpe, spec.head_dim_qk,
                            spec.head_dim_vo, paged, alignment);
                    const auto kernels = planner::kernel_set(problem::validate(spec, {}).spec, device.sm,
                                                             planner::repository_tuning())
                                             .kernels();
                    REQUIRE(!kernels.empty());
                    for (const families::KernelConfig& kernel : kernels) {
                        const auto mma = kernel.as<families::attention_mma::Kernel>();
                        REQUIRE(mma.wide);
                        REQUIRE(mma.absolute_cuts);
                        steps.insert({mma.tile_kv, mma.warps_kv});
                        abi::MmaShape shape = mma.shape();
                        shape.absolute_cuts = false;
                        REQUIRE(kernel.shared_bytes == abi::mma_layout(shape).total + abi::kTileWorkBytes);
                    }
                }
            }
        }
    }
    CHECK(steps == std::set{std::pair{32, 4}});
}

TEST_CASE("rows are cut at powers of two, into 64 pieces at most", "[planner]") {
    int before = abi::kLeastCut;
    for (int end = 0; end < 2000000; end = end < 70000 ? end + 1 : end + 997) {
        const int length = abi::cut_length(end);
        REQUIRE((length & (length - 1)) == 0);
        REQUIRE(length >= before);
        REQUIRE((end + length - 1) / length <= abi::kMostCuts);
        REQUIRE((length == abi::kLeastCut || end > length / 2 * abi::kMostCuts));
        REQUIRE((end + length - 1) / length <= abi::most_pieces(end));
        before = length;
    }
    CHECK(abi::cut_length((1 << 30) - 1) == 1 << 24);
}

// As docs/numerics.md says: bits that a release gave are given by later ones of the same toolchain, so where
// cuts are is no detail. Numbers here, not the constants of the header, which would move with them.
TEST_CASE("a row of up to 16,384 keys is cut every 256 keys, a longer one into 64 pieces", "[planner]") {
    struct Row {
        int keys, piece;
    };
    for (const auto& [keys, piece] : {Row{1, 256}, Row{256, 256}, Row{16384, 256}, Row{16385, 512},
                                      Row{32768, 512}, Row{32769, 1024}, Row{131072, 2048}})
        CHECK(abi::cut_length(keys) == piece);

    for (const families::DeviceTraits& device : families::known_devices()) {
        for (const std::int64_t head_dim : {64, 128, 320}) {
            AttentionSpec spec = llama();
            spec.head_dim_qk = spec.head_dim_vo = head_dim;
            spec.consistency = Consistency::bitwise;
            CAPTURE(device.sm, head_dim);
            const planner::Plan plan = plan_of(spec, {2, 1, 1 << 20}, device.sm);
            const bool wgmma = plan.kernel(planner::Role::attention).backend() == families::Backend::wgmma;
            const nlohmann::json split = json_of(plan)["split_kv"];
            CHECK(split["cuts"]["least_keys"].get<int>() == 256);
            CHECK(split["cuts"]["most_pieces"].get<int>() == 64);
            CHECK(split["cuts"]["softmax_keys"].get<int>() == (wgmma ? 64 : 32));
            CHECK(split.at("least_keys").get<int>() == 256);  // a share begins and ends at cuts

            // A place for each piece of 256 keys, and for no more than 64.
            const auto bytes = [&](std::int64_t keys) {
                return test::launch_facts(plan,
                                          {.batch = 2, .q_tokens = 2, .max_q_len = 1, .max_kv_len = keys})
                    .workspace_bytes;
            };
            CHECK(bytes(16384) == bytes(1 << 20));
            CHECK(bytes(16384 - 256) < bytes(16384));
        }
    }
}

// The places of pieces are rows of those that a sequence has, not of the whole tile.
TEST_CASE("with absolute cuts a share has a place for each piece", "[planner]") {
    AttentionSpec spec = llama();
    spec.consistency = Consistency::bitwise;
    const planner::Plan plan = plan_of(spec, {256, 1, 1 << 20}, 90);
    const auto bytes = [&](std::int64_t batch, std::int64_t q_len, std::int64_t keys) {
        const problem::BoundShape shape{
            .batch = batch, .q_tokens = batch * q_len, .max_q_len = q_len, .max_kv_len = keys};
        return test::launch_facts(plan, shape).workspace_bytes;
    };
    const std::int64_t rows = plan.split.parts * (abi::kMostCuts + 1) * 4;
    CHECK(bytes(256, 1, 1 << 20) == abi::kZeroedBytes + rows * (128 * 4 + 8));
    CHECK(bytes(256, 1, 1 << 14) == bytes(256, 1, 1 << 20));
    CHECK(bytes(256, 1, 1024) < bytes(256, 1, 1 << 14) / 10);
    CHECK(bytes(256, 2, 1 << 20) > bytes(256, 1, 1 << 20));
}

// A share has a word of the zeroed bytes, in which the CTAs of a tile arrive.
TEST_CASE("there are no more shares than the workspace has words to count in", "[planner]") {
    families::DeviceTraits large = families::traits_of(80);
    large.sm_count = 100000;
    const planner::Plan plan =
        planner::make_plan(problem::validate(llama(), {64, 1, 100000}), large, planner::repository_tuning());
    CHECK(plan.split.parts == abi::kMostShares);
    CHECK((abi::kArrivals + abi::kMostShares) * 4 == abi::kZeroedBytes);
}

TEST_CASE("the grid covers every tile of a ragged batch", "[planner]") {
    std::mt19937 random(11);
    for (int i = 0; i < 1000; ++i) {
        const std::int64_t batch = 1 + static_cast<std::int64_t>(random() % 40);
        std::int64_t tokens = 0, longest = 0;
        std::vector<std::int64_t> lengths;
        for (std::int64_t b = 0; b < batch; ++b) {
            lengths.push_back(static_cast<std::int64_t>(random() % 300));
            tokens += lengths.back();
            longest = std::max(longest, lengths.back());
        }
        const planner::Plan plan = plan_of(llama(), {batch, std::max<std::int64_t>(longest, 1), 512});
        const test::LaunchFacts launch = test::launch_facts(
            plan, {.batch = batch, .q_tokens = tokens, .max_q_len = longest, .max_kv_len = 512});
        std::int64_t needed = 0;
        for (std::int64_t length : lengths)
            needed += (length * 4 + plan.kernel(planner::Role::attention).tile_q() - 1) /
                      plan.kernel(planner::Role::attention).tile_q();
        REQUIRE(launch.tiles >= needed);
    }
}

TEST_CASE("an output of fp32 changes the kernels alone: neither the split nor the workspace", "[planner]") {
    for (const int sm : {80, 90}) {
        for (const PlanSizes& sizes :
             {PlanSizes{1, 1, 16384}, PlanSizes{8, 1, 4096}, PlanSizes{1, 128, 16384}}) {
            CAPTURE(sm, sizes.q_len, sizes.kv_len);
            AttentionSpec spec = llama();
            const planner::Plan rounded = plan_of(spec, sizes, sm);
            spec.o_dtype = DType::fp32;
            const planner::Plan whole = plan_of(spec, sizes, sm);
            const problem::BoundShape shape{.batch = sizes.batch,
                                            .q_tokens = sizes.batch * sizes.q_len,
                                            .max_q_len = sizes.q_len,
                                            .max_kv_len = sizes.kv_len};
            const test::LaunchFacts a = test::launch_facts(rounded, shape),
                                    b = test::launch_facts(whole, shape);
            REQUIRE(a.split.parts > 1);
            CHECK((a.split == b.split && a.rows == b.rows));
            CHECK(a.workspace_bytes == b.workspace_bytes);
            REQUIRE(rounded.steps.size() == whole.steps.size());
            for (std::size_t i = 0; i < whole.steps.size(); ++i)
                CHECK(rounded.steps[i].kernel != whole.steps[i].kernel);
            CHECK(schema_errors(json_of(whole)) == "");
            CHECK(json_of(whole)["request"]["o_dtype"] == "fp32");
        }
    }
}

TEST_CASE("what no kernel does is refused with every candidate's reason", "[planner]") {
    AttentionSpec spec = llama();
    spec.consistency = Consistency::bitwise;
    spec.precision = Precision::high;
    try {
        plan_of(spec, {});
        FAIL("planned");
    } catch (const Unsupported& error) {
        CHECK(error.refusals().size() == 3);
        CHECK(std::string(error.what()).find("bitwise") != std::string::npos);
    }
}

TEST_CASE("precision high is served on CUDA cores, and the others say why not", "[planner]") {
    AttentionSpec spec = llama();
    spec.precision = Precision::high;
    for (const auto& [output, relative] :
         {std::pair{DType::fp32, 1e-5}, std::pair{DType::bf16, 1e-5 + 1.0 / 256}}) {
        spec.o_dtype = output;
        for (const int sm : {80, 86, 90, 120}) {
            const planner::Plan plan = plan_of(spec, {4, 1, 4096}, sm);
            CHECK(plan.kernel(planner::Role::attention).family->name() == "attention_cuda_core");
            CHECK(plan.numerics.atol == 1e-5);
            CHECK(plan.numerics.rtol == Approx(relative));
            CHECK(std::ranges::any_of(plan.rejected, [](const Refusal& refusal) {
                return refusal.candidate == "mma" && refusal.reason.find("precision") != std::string::npos;
            }));
        }
    }
}

TEST_CASE("head dims to 512 have kernels that fit every SM, by mma but of whole panels on sm_90",
          "[planner]") {
    for (const families::DeviceTraits& device : families::known_devices()) {
        for (const auto& [qk, vo] : {std::pair{264, 264}, {320, 256}, {64, 512}, {512, 64}, {512, 512}}) {
            for (const bool paged : {false, true}) {
                AttentionSpec spec{.dtype = DType::bf16, .head_dim_qk = qk, .head_dim_vo = vo, .q_heads = 8};
                if (paged) spec.kv = KvStorage::paged, spec.page_size = 16;
                CAPTURE(device.sm, qk, vo, paged);
                const planner::KernelSet set = planner::kernel_set(problem::validate(spec, {}).spec,
                                                                   device.sm, planner::repository_tuning());
                int of_wgmma = 0;
                for (const families::KernelConfig& kernel : set.kernels()) {
                    of_wgmma += kernel.backend() == families::Backend::wgmma;
                    CHECK(kernel.shared_bytes <= families::traits_of(device.sm).shared_bytes_per_block);
                }
                // Tiles for many rows, and shares for few.
                CHECK(of_wgmma == (device.sm == 90 && qk % 128 == 0 && vo % 128 == 0 ? 2 : 0));
                spec.precision = Precision::high;
                CHECK_THROWS_AS(plan_of(spec, {}, device.sm), Unsupported);
            }
        }
    }
}

TEST_CASE("kernels of the set that serve other sizes stand apart from rejected candidates", "[planner]") {
    const planner::Plan plan = plan_of(llama(), {8, 1, 4096});
    const auto kernels =
        planner::kernel_set(plan.problem.spec, plan.device.sm, planner::repository_tuning()).kernels();
    const auto is_in_set = [&](const Refusal& one) {
        return std::ranges::any_of(kernels,
                                   [&](const auto& kernel) { return kernel.name() == one.candidate; });
    };
    CHECK(plan.unused.size() > 1);
    CHECK(std::ranges::all_of(plan.unused, is_in_set));
    CHECK(plan.rejected.size() > 1);
    CHECK(std::ranges::none_of(plan.rejected, is_in_set));
}

TEST_CASE("refused candidates keep their reasons", "[planner]") {
    const planner::Plan plan =
        plan_of({.head_dim_qk = 256, .q_heads = 8, .mask = Mask::causal}, {1, 4096, 4096}, 86);
    bool by_shared_memory = false;
    for (const Refusal& refusal : plan.rejected) {
        REQUIRE(!refusal.reason.empty());
        by_shared_memory = by_shared_memory || refusal.reason.find("shared memory") != std::string::npos;
    }
    REQUIRE(by_shared_memory);
}
