#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"

#include <nlohmann/json.hpp>

#include <random>

#include "planner/launch_facts.hpp"
#include "planner/plan_json.hpp"
#include "planner/schema_errors.hpp"
#include "problem/expect.hpp"
#include "support/catch.hpp"

using namespace attnsmith;

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
    for (const auto& [dtype, tolerance] : {std::pair{DType::f16, 1e-3}, {DType::bf16, 1e-2}}) {
        spec.dtype = dtype;
        const nlohmann::json numerics = json_of(plan_of(spec, {8, 1, 4096}))["numerics"];
        CHECK(numerics["atol"] == tolerance);
        CHECK(numerics["rtol"] == tolerance);
        CHECK(numerics["accumulate"] == "f32");
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

TEST_CASE("KV is split where the grid is small, and not where it is large", "[planner]") {
    CHECK(plan_of(llama(), {1, 1, 65536}).split.chunk > 0);
    CHECK(plan_of(llama(), {1, 1, 65536}).split.splits > 1);
    CHECK(plan_of(llama(), {256, 1, 2048}).split.chunk == 0);
    CHECK(plan_of(llama(), {8, 4096, 4096}).split.chunk == 0);
}

// The workspace of a split holds O in fp32 for each split: 4 GiB for 65,536 queries of 32 heads.
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
                    CHECK(plan_of(spec, {1, tokens, tokens}, sm).split.chunk == 0);
                }
            }
        }
    }
}

TEST_CASE("a chunk hides keys: a decode of it is divided as one of so many keys is", "[planner]") {
    AttentionSpec chunked = llama();
    chunked.attention_chunk = 8192;
    const planner::Plan plain = plan_of(llama(), {1, 1, 8192}), all = plan_of(llama(), {1, 1, 131072});
    const planner::Plan plan = plan_of(chunked, {1, 1, 131072});
    CHECK(plan.split.chunk <= plain.split.chunk * 2);  // of the keys seen, not of all
    CHECK(plan.split.chunk < all.split.chunk);
    chunked.attention_chunk = 512;
    CHECK(plan_of(chunked, {64, 1, 131072}).split.chunk == 0);
    const nlohmann::json json = json_of(plan);
    CHECK(schema_errors(json) == "");
    CHECK(json["request"]["attention_chunk"] == 8192);
}

TEST_CASE("a chunk that is no shorter than the keys plans as none", "[planner]") {
    for (const PlanSizes& sizes : {PlanSizes{8, 1, 4096}, PlanSizes{1, 4096, 4096}, PlanSizes{1, 17, 9000}}) {
        AttentionSpec chunked = llama();
        chunked.attention_chunk = sizes.kv_len;
        const planner::Plan with = plan_of(chunked, sizes), without = plan_of(llama(), sizes);
        CHECK(with.split.chunk == without.split.chunk);
        CHECK(with.steps.front().kernel == without.steps.front().kernel);
    }
}

TEST_CASE("chunks are whole tiles, at absolute positions", "[planner]") {
    std::mt19937 random(7);
    for (int i = 0; i < 2000; ++i) {
        const PlanSizes sizes{1 + static_cast<std::int64_t>(random() % 8),
                              1 + static_cast<std::int64_t>(random() % 4),
                              1 + static_cast<std::int64_t>(random() % 200000)};
        const planner::Plan plan = plan_of(llama(), sizes);
        REQUIRE(plan.split.chunk % plan.kernel(planner::Role::attention).tile_kv() == 0);
        const problem::BoundShape shape{.batch = sizes.batch,
                                        .q_tokens = sizes.batch * sizes.q_len,
                                        .max_q_len = sizes.q_len,
                                        .max_kv_len = static_cast<std::int64_t>(random() % 4000000)};
        const test::LaunchFacts launch = test::launch_facts(plan, shape);
        REQUIRE(launch.splits >= 1);
        REQUIRE(launch.splits <= 256);
        if (launch.splits > 1) {
            REQUIRE(launch.chunk % plan.kernel(planner::Role::attention).tile_kv() == 0);
            REQUIRE(launch.chunk * launch.splits >= shape.max_kv_len);
            REQUIRE(launch.chunk * (launch.splits - 1) < shape.max_kv_len);
            REQUIRE(launch.workspace_bytes >= 256 + launch.splits * launch.rows * (128 + 2) * 4);
        } else {
            REQUIRE(launch.workspace_bytes == 256);
        }
    }
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
            spec.o_dtype = DType::f32;
            const planner::Plan whole = plan_of(spec, sizes, sm);
            const problem::BoundShape shape{.batch = sizes.batch,
                                            .q_tokens = sizes.batch * sizes.q_len,
                                            .max_q_len = sizes.q_len,
                                            .max_kv_len = sizes.kv_len};
            const test::LaunchFacts a = test::launch_facts(rounded, shape),
                                    b = test::launch_facts(whole, shape);
            REQUIRE(a.splits > 1);
            CHECK((a.splits == b.splits && a.chunk == b.chunk && a.rows == b.rows));
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
         {std::pair{DType::f32, 1e-5}, std::pair{DType::bf16, 1e-5 + 1.0 / 256}}) {
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
