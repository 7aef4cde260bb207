// Sets of kernels over the stub driver: what is picked is what planning chooses, for nothing.
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>

#include "counted_allocations.hpp"
#include "engine/fake_runtime.hpp"
#include "families/traits.hpp"
#include "planner/plan.hpp"
#include "planner/random_problem.hpp"
#include "planner/repository_tuning.hpp"
#include "problem/expect.hpp"

using namespace attnsmith;
using attnsmith::test::at;
using attnsmith::test::contains;
using attnsmith::test::fake;
using attnsmith::test::fake_options;
using attnsmith::test::random_sizes;
using attnsmith::test::refused;
using nlohmann::json;

namespace {

AttentionSpec decode_spec() {
    return {.dtype = DType::bf16,
            .head_dim_qk = 128,
            .q_heads = 32,
            .kv_heads = 8,
            .mask = Mask::causal,
            .kv = KvStorage::paged,
            .page_size = 16};
}

// One for all test cases, so that each kernel is compiled once.
Runtime& shared_runtime() {
    static Runtime runtime(fake_options());
    return runtime;
}

const KernelSet& decode_set() {
    static const KernelSet set = shared_runtime().prepare_set(decode_spec());
    return set;
}

std::string name_of(const Kernel& kernel) { return json::parse(kernel.plan_json())["kernels"][0]["name"]; }

}  // namespace

TEST_CASE("a set has the kernel that planning chooses for any sizes", "[engine][kernel_set]") {
    const KernelSet& set = decode_set();
    std::mt19937 random(20261123);
    std::set<const Kernel*> picked;
    for (int i = 0; i < 3000; ++i) {
        const PlanSizes sizes = random_sizes(random);
        const Kernel& kernel = set.pick(sizes);
        CHECK(&set.pick(sizes) == &kernel);  // from memory
        picked.insert(&kernel);
        const json plan = json::parse(shared_runtime().plan_json(decode_spec(), sizes));
        REQUIRE(name_of(kernel) == plan["kernels"][0]["name"].get<std::string>());
    }
    CHECK(picked.size() > 1);
    CHECK(picked.size() <= set.size());
    CHECK(set.kernels().size() == set.size());
    CHECK(set.spec().head_dim_vo == 128);
    CHECK(set.device() == 0);
}

TEST_CASE("all kernels of a set are loaded when it is there", "[engine][kernel_set]") {
    fake() = {};
    Runtime runtime(fake_options());
    AttentionSpec spec = decode_spec();
    spec.alignment = 8;  // for which there are fewer
    const KernelSet set = runtime.prepare_set(spec);
    const int loads = fake().library_loads;
    CHECK(loads >= static_cast<int>(set.size()));
    std::mt19937 random(7);
    for (int i = 0; i < 100; ++i) (void)runtime.prepare(spec, random_sizes(random));
    CHECK(fake().library_loads == loads);
}

TEST_CASE("to pick allocates nothing", "[engine][kernel_set][allocations]") {
    const KernelSet& set = decode_set();
    std::mt19937 random(11);
    const std::size_t before = test::allocations();
    for (int i = 0; i < 1000; ++i) (void)set.pick(random_sizes(random));
    CHECK(test::allocations() == before);
}

TEST_CASE("sizes that cannot be are refused by name", "[engine][kernel_set]") {
    const KernelSet& set = decode_set();
    CHECK(refused([&] { (void)set.pick({.batch = 0}); }).field() == "batch");
    CHECK(refused([&] { (void)set.pick({.q_len = -1}); }).field() == "q_len");
    CHECK(refused([&] { (void)set.pick({.kv_len = std::int64_t{1} << 31}); }).field() == "kv_len");
    CHECK(refused([&] { (void)set.workspace_bytes({-1, 1, 1}); }).field() == "batch");
    const KernelSet none;
    CHECK_THROWS_AS((void)none.pick({}), Error);
    CHECK_FALSE(static_cast<bool>(none));
}

TEST_CASE("a merge's set is its one kernel", "[engine][kernel_set]") {
    fake() = {};
    Runtime runtime(fake_options());
    const KernelSet set =
        runtime.prepare_set({.op = Op::merge, .dtype = DType::bf16, .head_dim_vo = 64, .q_heads = 4});
    REQUIRE(set.size() == 1);
    CHECK(contains(name_of(set.pick({})), "merge states"));
    CHECK(set.workspace_bytes({1, 10, 0}) == 0);
}

TEST_CASE("the plan of a set's kernel says that it divides keys by bounds", "[engine][kernel_set]") {
    const KernelSet& set = decode_set();
    const json plan = json::parse(set.pick({8, 1, 4096}).plan_json());
    CHECK(plan["split_kv"]["of_bounds"] == true);
    CHECK(plan["request"]["batch"] == 1);
    CHECK(plan["rejected"].is_array());
}

// Not a test: how long it takes.
TEST_CASE("the time to pick", "[.][kernel_set_speed]") {
    for (const bool known : {false, true}) {
        const KernelSet& set = decode_set();
        for (const PlanSizes& sizes :
             {PlanSizes{1, 1, 1000}, PlanSizes{64, 1, 8192}, PlanSizes{256, 1, 131072},
              PlanSizes{1, 128, 32768}, PlanSizes{1, 16, 131072}, PlanSizes{1, 2048, 32768},
              PlanSizes{8, 4096, 4096}}) {
            constexpr int kTimes = 20000;
            const auto start = std::chrono::steady_clock::now();
            std::int64_t sum = 0;
            for (int i = 0; i < kTimes; ++i) {
                PlanSizes varied = sizes;
                varied.kv_len += known ? i % 64 : i;
                sum += set.pick(varied).device();
            }
            const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
            WARN((known ? "known sizes, " : "new sizes, ")
                 << sizes.batch << " x " << sizes.q_len << " x " << sizes.kv_len << ": "
                 << time.count() / kTimes << " us" << (sum != 0 ? "?" : ""));
        }
    }
}
