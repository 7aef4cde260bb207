// The promise that pre-warming rests on: what planning chooses, whatever the sizes and the GPU, is in the
// kernel set.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "attnsmith/coverage.hpp"
#include "families/registry/registry.hpp"
#include "planner/launch.hpp"
#include "planner/plan.hpp"
#include "planner/random_problem.hpp"
#include "planner/repository_tuning.hpp"
#include "problem/compute_capability.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using attnsmith::test::random_sizes;
using attnsmith::test::random_spec;
using attnsmith::test::random_spec_of_any_op;
using attnsmith::test::random_stored_spec;
using families::KernelConfig;

namespace {

// The repository's, with bounds between the sizes for some of its entries, and with tiles for decode.
families::TuningTable random_tuning(std::mt19937& random) {
    const auto own = planner::repository_entries();
    std::vector<families::TuningEntry> entries(own.begin(), own.end());
    std::erase_if(entries,
                  [](const families::TuningEntry& entry) { return entry.match.max_rows.has_value(); });
    for (std::size_t i = 0, all = entries.size(); i < all; ++i) {
        for (std::size_t bounds = random() % 3; bounds > 0; --bounds) {
            families::TuningEntry entry = entries[i];
            entry.match.max_rows = 1 << (5 + random() % 12);
            entry.tile.tile_q = random() % 2 ? 128 : 192;
            entry.tile.tile_kv = 64 + 32 * static_cast<int>(random() % 3);
            entries.push_back(entry);
        }
    }
    for (const int head_dim : {64, 96, 128, 192, 256}) {
        for (const bool paged : {false, true}) {
            if (random() % 3 == 0) continue;
            entries.push_back({.match = {.sm = 90,
                                         .head_dim_qk = head_dim,
                                         .head_dim_vo = head_dim,
                                         .paged = paged,
                                         .max_rows = families::kDecodeRows},
                               .tile = {.backend = families::Backend::mma,
                                        .tile_q = families::kDecodeRows,
                                        .tile_kv = 32 << random() % 3,
                                        .stages = 1 + static_cast<int>(random() % 3)}});
        }
    }
    return families::TuningTable(entries);
}

bool contains(const std::vector<KernelConfig>& set, const KernelConfig& kernel) {
    return std::find(set.begin(), set.end(), kernel) != set.end();
}

// Half of them of op attention with default arithmetic, which alone has kernels that widen keys before it.
AttentionSpec random_spec_of_sets(std::mt19937& random) {
    return random() % 2 ? random_stored_spec(random) : random_spec_of_any_op(random);
}

// The step that does the op's own work.
const planner::Step& main_step(const planner::Plan& plan) {
    const bool appends = plan.problem.spec.op == Op::append;
    const planner::Step* const step = plan.find(appends ? planner::Role::append : planner::Role::attention);
    REQUIRE(step != nullptr);
    return *step;
}

// Counts specs by what changes their kernels, so that a generator which stops giving some of it is seen.
class Kinds {
  public:
    void add(const AttentionSpec& spec) {
        const std::string op(to_string(spec.op));
        ++counts_[op];
        ++counts_[op + " kv_scale " + std::string(to_string(spec.kv_scale))];
        if (spec.consistency == Consistency::bitwise) ++counts_[op + " bitwise"];
        if (spec.consistency == Consistency::bitwise && spec.kv_scale == KvScale::token_head)
            ++counts_[op + " bitwise token_head"];
        if (spec.precision == Precision::high) ++counts_[op + " high"];
    }

    void require_each(int least) const {
        for (const char* const scale : {"none", "tensor", "head", "token_head", "block128"})
            for (const char* const op : {"attention", "mla", "append"})
                require(std::string(op) + " kv_scale " + scale, least);
        for (const char* const kind : {"attention bitwise", "mla bitwise", "attention bitwise token_head",
                                       "mla bitwise token_head", "attention high"})
            require(kind, least);
    }

  private:
    void require(const std::string& kind, int least) const {
        INFO(kind);
        const auto found = counts_.find(kind);
        REQUIRE((found != counts_.end() && found->second >= least));
    }

    std::map<std::string, int> counts_;
};

}  // namespace

TEST_CASE("every plan's kernels are in the kernel set of its spec and SM", "[planner]") {
    std::mt19937 random(20260101);
    const auto devices = families::known_devices();
    const families::TuningTable tables[] = {planner::repository_tuning(), random_tuning(random),
                                            random_tuning(random)};
    Kinds kinds;
    int divided = 0, instead = 0;
    for (int i = 0; i < 20000; ++i) {
        const AttentionSpec spec = random_spec_of_sets(random);
        const problem::Problem problem = problem::validate(spec, random_sizes(random));
        families::DeviceTraits device = devices[random() % devices.size()];
        const families::TuningTable& tuning = tables[random() % std::size(tables)];
        CAPTURE(to_json(AttentionRequest{problem.spec, problem.sizes, {device.sm}}));
        const std::vector<KernelConfig> set = planner::kernel_set(problem.spec, device.sm, tuning).kernels();
        // A kernel that merges is there where others leave it something to do.
        const bool merges = std::ranges::any_of(set, [](const KernelConfig& kernel) {
            return kernel.family->role() == families::Role::merge_splits;
        });
        const bool in_chunks = std::ranges::any_of(set, [](const KernelConfig& kernel) {
            return families::takes(kernel, families::SplitPolicy::chunks);
        });
        REQUIRE(merges == in_chunks);
        device.sm_count = 1 + static_cast<int>(random() % 300);
        device.name = "some other product";
        const planner::Plan plan = planner::make_plan(problem, device, tuning);
        for (const planner::Step& step : plan.steps) REQUIRE(contains(set, step.kernel));
        for (const planner::Plan& other : plan.instead)
            for (const planner::Step& step : other.steps) REQUIRE(contains(set, step.kernel));
        const families::SplitPolicy policy = plan.split.policy;
        const KernelConfig& main = main_step(plan).kernel;
        REQUIRE(families::takes(main, policy));
        REQUIRE((plan.find(planner::Role::merge_splits) != nullptr) ==
                (policy == families::SplitPolicy::chunks));
        divided += policy != families::SplitPolicy::none;
        instead += !plan.instead.empty();
        kinds.add(problem.spec);
    }
    kinds.require_each(50);
    REQUIRE(divided > 1000);
    REQUIRE(instead > 10);
}

TEST_CASE("what is chosen of a set is what is planned, for any sizes", "[planner]") {
    std::mt19937 random(20261123);
    const auto devices = families::known_devices();
    const families::TuningTable tables[] = {planner::repository_tuning(), random_tuning(random)};
    std::map<families::SplitPolicy, int> seen;
    Kinds kinds;
    int widened = 0;
    for (int i = 0; i < 1500; ++i) {
        const AttentionSpec spec = problem::validate(random_spec_of_sets(random), {}).spec;
        kinds.add(spec);
        families::DeviceTraits device = devices[random() % devices.size()];
        device.sm_count = 1 + static_cast<int>(random() % 300);
        const families::TuningTable& tuning = tables[random() % std::size(tables)];
        const planner::SetOfPlans made = planner::plan_set(spec, device, tuning);
        for (int j = 0; j < 10; ++j) {
            const problem::Problem problem = problem::validate(spec, random_sizes(random));
            const planner::Plan plan = planner::make_plan(problem, device, tuning);
            const planner::Choice chosen = planner::choose(made.set, problem, device);
            REQUIRE(chosen.candidate != nullptr);
            const planner::Step& main = main_step(plan);
            widened += plan.find(planner::Role::widen) != nullptr;
            REQUIRE(chosen.candidate->kernel == main.kernel);
            REQUIRE(chosen.candidate->source == main.tile_source);
            REQUIRE(chosen.split == plan.split);
            const auto place = static_cast<std::size_t>(chosen.candidate - made.set.candidates.data());
            const planner::Plan& of_set = made.plans.at(made.plan_of.at(place));
            REQUIRE(of_set.steps.front().kernel == plan.steps.front().kernel);
            // Bound with the sizes that it was picked for, it divides the keys likewise.
            const auto& [batch, q_len, kv_len] = problem.sizes;
            const problem::BoundShape shape{
                .batch = batch, .q_tokens = batch * q_len, .max_q_len = q_len, .max_kv_len = kv_len};
            const planner::Launch launch = planner::launch_of(of_set, shape);
            const planner::Launch planned = planner::launch_of(plan, shape);
            if (plan.split.policy != families::SplitPolicy::chunks && q_len > 0)
                REQUIRE(launch.split == planned.split);
            ++seen[launch.split.policy];
        }
    }
    kinds.require_each(5);
    REQUIRE(seen[families::SplitPolicy::none] > 100);
    REQUIRE(seen[families::SplitPolicy::shares] > 100);
    REQUIRE(widened > 0);
}

TEST_CASE("a set's kernel takes chunks where planning would, while few rows have partial results",
          "[planner]") {
    const AttentionSpec spec = problem::validate({.head_dim_qk = 128, .q_heads = 32, .kv_heads = 8}, {}).spec;
    const families::DeviceTraits device = families::traits_of(90);
    const planner::SetOfPlans made = planner::plan_set(spec, device, planner::repository_tuning());
    for (const std::int64_t kv_len : {4096, 32768, 100000}) {
        const problem::Problem problem = problem::validate(spec, {1, 128, kv_len});
        const planner::Plan plan = planner::make_plan(problem, device, planner::repository_tuning());
        REQUIRE(plan.split.policy == families::SplitPolicy::chunks);
        const planner::Choice chosen = planner::choose(made.set, problem, device);
        const auto place = static_cast<std::size_t>(chosen.candidate - made.set.candidates.data());
        const planner::Plan& of_set = made.plans.at(made.plan_of.at(place));
        problem::BoundShape shape{.batch = 1, .q_tokens = 128, .max_q_len = 128, .max_kv_len = kv_len};
        CHECK(planner::launch_of(of_set, shape).split == planner::launch_of(plan, shape).split);
        shape.batch = 64, shape.q_tokens = 64 * 128;  // they fill the device as they are
        CHECK(planner::launch_of(of_set, shape).split.policy == families::SplitPolicy::none);
    }
}

TEST_CASE("a set's workspace serves all smaller bounds", "[planner]") {
    std::mt19937 random(20261124);
    const auto devices = families::known_devices();
    Kinds kinds;
    int in_chunks = 0;
    for (int i = 0; i < 2000; ++i) {
        const AttentionSpec spec = problem::validate(random_spec_of_sets(random), {}).spec;
        kinds.add(spec);
        const families::DeviceTraits& device = devices[random() % devices.size()];
        const planner::SetOfPlans made = planner::plan_set(spec, device, planner::repository_tuning());
        const PlanSizes most = random_sizes(random);
        const auto shape_of = [](const PlanSizes& sizes, std::int64_t tokens) {
            return problem::BoundShape{.batch = sizes.batch,
                                       .q_tokens = tokens,
                                       .max_q_len = sizes.q_len,
                                       .max_kv_len = sizes.kv_len};
        };
        for (const planner::Plan& plan : made.plans) {
            // As Kernel::workspace_bytes() asks: one sequence may have all queries.
            PlanSizes bounds = most;
            bounds.q_len = most.batch * most.q_len;
            const std::int64_t bytes =
                planner::launch_of(plan, shape_of(bounds, bounds.q_len)).workspace.bytes();
            for (int j = 0; j < 10; ++j) {
                const auto up_to = [&](std::int64_t value) {
                    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(value + 1));
                };
                const PlanSizes sizes{up_to(most.batch), up_to(most.q_len), up_to(most.kv_len)};
                const planner::Launch launch =
                    planner::launch_of(plan, shape_of(sizes, sizes.batch * sizes.q_len));
                REQUIRE(launch.workspace.bytes() <= bytes);
                if (launch.split.chunks() == 1) continue;
                ++in_chunks;
                const std::int64_t rows = launch.split.parts * launch.partial.rows;
                if (rows == 0) continue;
                const auto o = launch.workspace[families::Region::partial_o];
                const auto ml = launch.workspace[families::Region::partial_ml];
                REQUIRE(o.bytes >= rows * problem::value_dim(spec) * 4);
                REQUIRE(ml.bytes >= rows * 8);
                REQUIRE(o.offset + o.bytes <= ml.offset);
                REQUIRE(ml.offset + ml.bytes <= launch.workspace.bytes());
            }
        }
    }
    kinds.require_each(5);
    REQUIRE(in_chunks > 20);
}

TEST_CASE("the kernels of a model's coverage are those of whatever a program chooses", "[planner]") {
    const char* const config =
        R"({"model_type": "mistral", "hidden_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 16,
            "num_key_value_heads": 4, "sliding_window": 512, "torch_dtype": "bfloat16"})";
    const Coverage coverage = model_coverage(
        config, R"({"dtype": ["bf16", "fp16"], "kv": ["paged", "dense", "ragged"], "page_size": [16, 64],
                    "page_order": ["NHD", "HND"], "index_dtype": ["int32", "int64"], "alignment": [16, 8, 4, 2],
                    "lse": [false, true]})");
    std::mt19937 random(20261122);
    const auto pick = [&](auto... values) {
        const std::common_type_t<decltype(values)...> list[] = {values...};
        return list[random() % std::size(list)];
    };
    for (const int sm : {80, 89, 90, 100}) {
        std::vector<KernelConfig> built;
        for (const AttentionSpec& spec : coverage.specs()) {
            for (const KernelConfig& kernel :
                 planner::kernel_set(spec, sm, planner::repository_tuning()).kernels()) {
                if (!contains(built, kernel)) built.push_back(kernel);
            }
        }
        for (int i = 0; i < 300; ++i) {
            // As a program that runs this model would ask, by its own words.
            AttentionSpec spec{.dtype = pick(DType::bf16, DType::fp16),
                               .head_dim_qk = 128,
                               .q_heads = 16,
                               .kv_heads = 4,
                               .mask = Mask::causal,
                               .window_left = 511,
                               .lse = pick(false, true)};
            spec.kv = pick(KvStorage::dense, KvStorage::ragged, KvStorage::paged);
            if (spec.kv == KvStorage::paged) {
                spec.page_size = pick(16, 64);
                spec.page_order = pick(PageOrder::NHD, PageOrder::HND);
            }
            spec.index_dtype = pick(DType::int32, DType::int64);
            spec.alignment = pick(16, 8, 4, 2);
            const problem::Problem problem = problem::validate(spec, random_sizes(random));
            families::DeviceTraits device = families::traits_of(sm);
            device.sm_count = 1 + static_cast<int>(random() % 300);
            const planner::Plan plan = planner::make_plan(problem, device, planner::repository_tuning());
            for (const planner::Step& step : plan.steps) REQUIRE(contains(built, step.kernel));
        }
    }
}

TEST_CASE("the coverage of a model with latents has the kernels of its decode and of its appends",
          "[planner]") {
    const Coverage coverage = model_coverage(
        R"({"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 2, "num_attention_heads": 128,
            "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128, "rope_theta": 10000, "rope_interleave": true, "torch_dtype": "bfloat16"})",
        R"({"dtype": "bf16", "kv": "paged", "page_size": [1, 64], "index_dtype": ["int32", "int64"],
            "consistency": ["standard", "bitwise"], "kv_dtype": ["bf16", "e4m3"],
            "kv_scale": ["none", "token_head", "block128"], "o_dtype": ["bf16", "fp32"], "slots": "mapping"})");
    std::mt19937 random(20261125);
    for (const int sm : {80, 90, 120}) {
        std::vector<KernelConfig> built;
        for (const AttentionSpec& spec : coverage.specs())
            for (const KernelConfig& kernel :
                 planner::kernel_set(spec, sm, planner::repository_tuning()).kernels())
                if (!contains(built, kernel)) built.push_back(kernel);
        for (int i = 0; i < 300; ++i) {
            // The decode and the append of this model in the program's words.
            AttentionSpec spec{.head_dim_ckv = 512, .head_dim_kpe = 64, .q_heads = 128};
            spec.kv = KvStorage::paged, spec.page_size = attnsmith::test::pick_of(random, 1, 64);
            spec.index_dtype = attnsmith::test::pick_of(random, DType::int32, DType::int64);
            if (random() % 2) {
                spec.kv_dtype = DType::e4m3;
                spec.kv_scale =
                    attnsmith::test::pick_of(random, KvScale::none, KvScale::token_head, KvScale::block128);
            }
            if (random() % 3 == 0) {
                spec.op = Op::append, spec.rope = Rope::interleaved, spec.k_norm = true;
            } else {
                spec.op = Op::mla, spec.scale = 0.1, spec.mask = Mask::causal;
                spec.consistency =
                    attnsmith::test::pick_of(random, Consistency::standard, Consistency::bitwise);
                spec.o_dtype = attnsmith::test::pick_of(random, DType::bf16, DType::fp32);
            }
            const problem::Problem problem = problem::validate(spec, random_sizes(random));
            CAPTURE(to_json(AttentionRequest{problem.spec, problem.sizes, {sm}}));
            families::DeviceTraits device = families::traits_of(sm);
            device.sm_count = 1 + static_cast<int>(random() % 300);
            const planner::Plan plan = planner::make_plan(problem, device, planner::repository_tuning());
            for (const planner::Step& step : plan.steps) REQUIRE(contains(built, step.kernel));
        }
    }
}

TEST_CASE("the kernel set depends on nothing that is an argument at launch", "[planner]") {
    AttentionSpec spec{
        .dtype = DType::bf16, .head_dim_qk = 128, .q_heads = 32, .kv_heads = 8, .mask = Mask::causal};
    const auto set_of = [](const AttentionSpec& s) {
        return planner::kernel_set(problem::validate(s, {}).spec, 90, planner::repository_tuning()).kernels();
    };
    const auto reference = set_of(spec);
    AttentionSpec other = spec;
    other.q_heads = 64;
    other.sink = true;
    other.scale = 0.5;
    REQUIRE(set_of(other) == reference);
    other.attention_chunk = 8192;
    REQUIRE(set_of(other) == reference);
    AttentionSpec window = other;
    window.window_left = 127;
    const auto of_windows = set_of(window);
    window.window_left = 4095;
    REQUIRE(set_of(window) == of_windows);
    other.softcap = 50.0;
    REQUIRE(set_of(other) != reference);
}

TEST_CASE("on one SM, kernels that differ have names that differ", "[planner]") {
    std::mt19937 random(20);
    std::map<std::pair<int, std::string>, KernelConfig> named;
    for (int i = 0; i < 400; ++i) {
        const AttentionSpec spec = problem::validate(random_spec(random), {}).spec;
        const int sm = i % 2 == 0 ? 80 : 90;
        for (const KernelConfig& kernel :
             planner::kernel_set(spec, sm, planner::repository_tuning()).kernels()) {
            const auto [known, added] = named.emplace(std::pair(sm, kernel.name()), kernel);
            INFO(kernel.name());
            CHECK(known->second == kernel);
        }
    }
}

TEST_CASE("kernels whose output is of fp32 are kernels of their own, and say so", "[planner]") {
    std::mt19937 random(32);
    int attentions = 0;
    for (int i = 0; i < 200; ++i) {
        AttentionSpec spec = random_spec(random);
        spec.o_dtype.reset();
        const int sm = i % 2 == 0 ? 80 : 90;
        const auto set_of = [&](std::optional<DType> o_dtype) {
            spec.o_dtype = o_dtype;
            return planner::kernel_set(problem::validate(spec, {}).spec, sm, planner::repository_tuning())
                .kernels();
        };
        const std::vector<KernelConfig> rounded = set_of({}), whole = set_of(DType::fp32);
        REQUIRE(set_of(spec.dtype) == rounded);
        for (const KernelConfig& kernel : whole) {
            INFO(kernel.name());
            REQUIRE(!contains(rounded, kernel));
            const bool attends = kernel.family->role() == families::Role::attention;
            REQUIRE(kernel.name().find(attends ? " to fp32" : "merge fp32") != std::string::npos);
            attentions += attends;
        }
        for (const KernelConfig& kernel : rounded) REQUIRE(kernel.name().find("fp32") == std::string::npos);
    }
    CHECK(attentions > 200);
}

TEST_CASE("a merge has one kernel, whatever the heads, the lse and the sizes", "[planner][merge]") {
    for (const families::DeviceTraits& device : families::known_devices()) {
        AttentionSpec spec{.op = Op::merge, .head_dim_vo = 128, .q_heads = 4};
        const auto set = planner::kernel_set(spec, device.sm, planner::repository_tuning()).kernels();
        REQUIRE(set.size() == 1);
        spec.q_heads = 64;
        spec.lse = true;
        REQUIRE(planner::kernel_set(spec, device.sm, planner::repository_tuning()).kernels() == set);
        REQUIRE(
            planner::make_plan(problem::validate(spec, {3, 1000, 1}), device, planner::repository_tuning())
                .kernel(planner::Role::merge_states) == set[0]);
        spec.alignment = 8;
        REQUIRE(planner::kernel_set(spec, device.sm, planner::repository_tuning()).kernels() != set);
    }
}

TEST_CASE("every SM of the table has a plan for every head dim", "[planner]") {
    for (const families::DeviceTraits& device : families::known_devices()) {
        for (std::int64_t qk = 8; qk <= 256; qk += 8) {
            for (std::int64_t vo : {qk, std::int64_t{8}, std::int64_t{128}, std::int64_t{256}}) {
                AttentionSpec spec{.head_dim_qk = qk, .head_dim_vo = vo, .q_heads = 4, .kv_heads = 2};
                if (qk / 8 % 2 == 0) spec.o_dtype = DType::fp32;  // its rows take twice the shared memory
                for (std::int64_t q_len : {1, 20, 4096}) {
                    const auto plan = planner::make_plan(
                        problem::validate(spec, {.batch = 2, .q_len = q_len, .kv_len = 4096}), device,
                        planner::repository_tuning());
                    CAPTURE(device.sm, qk, vo, q_len);
                    REQUIRE(plan.kernel(planner::Role::attention).shared_bytes <=
                            device.shared_bytes_per_block);
                    REQUIRE(plan.kernel(planner::Role::attention).registers_ceiling() >= 128);
                    REQUIRE(plan.kernel(planner::Role::attention).ctas_per_sm >= 1);
                }
            }
        }
    }
}

TEST_CASE("the table lists the SMs that requests may name", "[planner]") {
    std::vector<int> listed;
    for (const families::DeviceTraits& device : families::known_devices()) listed.push_back(device.sm);
    CHECK(listed == parse_request(R"({"op":"attention","head_dim":64,"q_heads":1,"sm":"all"})").sm);
    REQUIRE_THROWS_AS(families::traits_of(91), InvalidRequest);
}

TEST_CASE("a GPU that the table does not know is planned as the nearest of its major", "[planner]") {
    REQUIRE(families::traits_of_device(88, "x", 20).sm == 87);
    REQUIRE(families::traits_of_device(90, "NVIDIA H200", 132).name == "NVIDIA H200");
    REQUIRE_THROWS_AS(families::traits_of_device(75, "Tesla T4", 40), Unsupported);
    REQUIRE_THROWS_AS(families::traits_of_device(130, "future", 40), Unsupported);
}

TEST_CASE("the backends that families have are those of the kernels, over all SMs", "[planner]") {
    std::set<families::Backend> planned;
    const AttentionSpec specs[] = {{.head_dim_qk = 64, .q_heads = 4},
                                   {.op = Op::merge, .head_dim_vo = 64, .q_heads = 4}};
    for (const int sm : problem::known_sms()) {
        for (const AttentionSpec& spec : specs) {
            const auto set =
                planner::kernel_set(problem::validate(spec, {}).spec, sm, planner::repository_tuning());
            for (const KernelConfig& kernel : set.kernels()) planned.insert(kernel.backend());
        }
    }
    const std::vector<families::Backend> known = families::all_backends();
    CHECK(std::set(known.begin(), known.end()) == planned);
    CHECK(known.size() == planned.size());
}
