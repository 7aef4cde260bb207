// Keys of 8 bits that are widened into the workspace before an attention of many queries.
#include <algorithm>

#include "abi/widen_arguments.h"
#include "planner/launch.hpp"
#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using planner::Role;

namespace {

AttentionSpec spec_of(std::int64_t head_dim_qk, std::int64_t head_dim_vo, KvStorage kv) {
    AttentionSpec spec{.head_dim_qk = head_dim_qk, .head_dim_vo = head_dim_vo, .q_heads = 32, .kv_heads = 8};
    spec.mask = Mask::causal;
    spec.kv_dtype = DType::e4m3;
    spec.kv = kv;
    spec.page_size = kv == KvStorage::paged ? 16 : 0;
    return spec;
}

AttentionSpec spec_of(std::int64_t head_dim, KvStorage kv) { return spec_of(head_dim, head_dim, kv); }

planner::Plan plan_of(const AttentionSpec& spec, const PlanSizes& sizes, int sm = 90) {
    return planner::make_plan(problem::validate(spec, sizes), families::traits_of(sm),
                              planner::repository_tuning());
}

bool is_widened(const planner::Plan& plan) { return plan.find(Role::widen) != nullptr; }

}  // namespace

TEST_CASE("keys are widened ahead where many queries meet each of them", "[planner][widen]") {
    for (const KvStorage kv : {KvStorage::dense, KvStorage::ragged, KvStorage::paged}) {
        const AttentionSpec spec = spec_of(128, kv);
        const planner::Plan plan = plan_of(spec, {1, 16384, 16384});
        REQUIRE(plan.steps.size() == 2);
        CHECK(plan.steps[0].role() == Role::widen);
        CHECK(plan.steps[1].role() == Role::attention);
        CHECK(plan.steps[1].kernel.family->needs(plan.steps[1].kernel, families::Role::widen));
        // Longer keys alone are no reason, and neither are more sequences.
        CHECK_FALSE(is_widened(plan_of(spec, {1, 1, 16384})));
        CHECK_FALSE(is_widened(plan_of(spec, {1, 256, 16384})));
        CHECK_FALSE(is_widened(plan_of(spec, {32, 512, 512})));
    }
    // No other kernel of wgmma has room for these columns.
    CHECK(is_widened(plan_of(spec_of(256, KvStorage::paged), {1, 1024, 1024})));
    for (const int sm : {80, 89, 100, 120})
        CHECK_FALSE(is_widened(plan_of(spec_of(128, KvStorage::paged), {1, 16384, 16384}, sm)));
    AttentionSpec other = spec_of(128, KvStorage::paged);
    other.consistency = Consistency::bitwise;
    CHECK_FALSE(is_widened(plan_of(other, {1, 16384, 16384})));
    other = spec_of(128, KvStorage::paged);
    other.kv_scale = KvScale::token_head;
    CHECK_FALSE(is_widened(plan_of(other, {1, 16384, 16384})));
}

TEST_CASE("a window that hides most keys leaves few to widen", "[planner][widen]") {
    AttentionSpec spec = spec_of(128, KvStorage::paged);
    spec.window_left = 511;
    CHECK_FALSE(is_widened(plan_of(spec, {1, 2048, 131072})));
    spec.window_left = 50000;
    CHECK(is_widened(plan_of(spec, {1, 2048, 60000})));
    spec.window_left.reset();
    spec.attention_chunk = 512;
    CHECK_FALSE(is_widened(plan_of(spec, {1, 2048, 60000})));
}

TEST_CASE("keys that each are met by few queries are not widened, however many queries there are",
          "[planner][widen]") {
    for (const std::int64_t length : {4096, 16384}) {
        CAPTURE(length);
        AttentionSpec spec = spec_of(128, KvStorage::paged);
        for (const std::int64_t seen : {128, 256}) {
            CAPTURE(seen);
            spec.window_left = seen - 1;
            CHECK_FALSE(is_widened(plan_of(spec, {1, length, length})));
            spec.window_left.reset();
            spec.attention_chunk = seen;
            CHECK_FALSE(is_widened(plan_of(spec, {1, length, length})));
            spec.attention_chunk.reset();
        }
        spec.window_left = length / 2;
        CHECK(is_widened(plan_of(spec, {1, length, length})));
    }
}

TEST_CASE("widened keys take a workspace that is said, and no more than a bound", "[planner][widen]") {
    const AttentionSpec spec = spec_of(128, KvStorage::paged);
    const planner::Plan plan = plan_of(spec, {2, 8192, 8192});
    REQUIRE(is_widened(plan));
    const problem::BoundShape shape{.batch = 3, .q_tokens = 100, .max_q_len = 60, .max_kv_len = 5001};
    const planner::Launch launch = planner::launch_of(plan, shape);
    const std::int64_t rows = 3 * 8 * 5001;
    CHECK(launch.workspace.bytes() >= rows * 256 * 2);
    const auto k = launch.workspace[families::Region::widened_k];
    const auto v = launch.workspace[families::Region::widened_v];
    CHECK(k.offset % families::WorkspaceLayout::kAlignment == 0);
    CHECK(k.bytes == rows * 128 * 2);
    CHECK(v.offset >= k.offset + k.bytes);
    CHECK(v.bytes == rows * 128 * 2);
    CHECK(launch.workspace.bytes() >= v.offset + v.bytes);
    // 64 keys a CTA, of each KV head.
    CHECK(launch.extents[0].ctas == 3 * 8 * 79);
    // Without queries there is nothing to do.
    CHECK(planner::launch_of(plan, {.batch = 3, .max_kv_len = 5001}).extents[0].ctas == 0);

    const planner::Plan large = plan_of(spec, {16, 16384, 65536});
    CHECK_FALSE(is_widened(large));
    CHECK(large.instead.empty());
    CHECK(std::ranges::any_of(large.unused, [](const Refusal& one) {
        return one.reason == "its workspace would take 4096 MiB for widened keys; at most 256 are taken";
    }));
    // More than 64 bits count.
    AttentionSpec many = spec_of(256, KvStorage::paged);
    many.q_heads = many.kv_heads = 65536;
    CHECK_FALSE(is_widened(plan_of(many, {16384, 1024, std::int64_t{1} << 30})));
}

TEST_CASE("bounds whose widened keys would take too much have another kernel", "[planner][widen]") {
    const std::pair<std::int64_t, std::int64_t> head_dims[] = {{128, 128}, {256, 256}, {192, 128}};
    for (const auto& [qk, vo] : head_dims) {
        CAPTURE(qk, vo);
        const planner::Plan plan = plan_of(spec_of(qk, vo, KvStorage::paged), {1, 16384, 16384});
        REQUIRE(is_widened(plan));
        REQUIRE(plan.instead.size() == 1);
        CHECK_FALSE(is_widened(plan.instead.front()));
        const auto plan_of_bounds = [&](std::int64_t batch, std::int64_t keys) {
            return &planner::plan_for(
                plan, {.batch = batch, .q_tokens = 512, .max_q_len = 512, .max_kv_len = keys});
        };
        const std::int64_t of_key = 8 * (qk + vo) * 2;  // heads, columns, bytes
        const std::int64_t most = (std::int64_t{256} << 20) / of_key;
        CHECK(plan_of_bounds(1, most) == &plan);
        CHECK(plan_of_bounds(4, most / 4) == &plan);
        CHECK(plan_of_bounds(1, most + 1) == &plan.instead.front());
        CHECK(plan_of_bounds(256, 131072) == &plan.instead.front());
        // A workspace serves all smaller bounds, too, whichever kernel they have.
        std::int64_t before = 0;
        for (std::int64_t keys = 1; keys <= std::int64_t{1} << 30; keys *= 2) {
            for (const std::int64_t batch : {1, 3, 1 << 20}) {
                const problem::BoundShape shape{
                    .batch = batch, .q_tokens = 512, .max_q_len = 512, .max_kv_len = keys};
                const std::int64_t needed =
                    planner::launch_of(planner::plan_for(plan, shape), shape).workspace.bytes();
                CHECK(needed <= planner::workspace_bytes(plan, shape));
                CHECK(planner::workspace_bytes(plan, shape) <= (std::int64_t{600} << 20));
                if (batch > 1) continue;
                CHECK(before <= planner::workspace_bytes(plan, shape));
                before = planner::workspace_bytes(plan, shape);
            }
        }
    }
}

TEST_CASE("a kernel set has what widens, and what is launched instead", "[planner][widen]") {
    const AttentionSpec spec = problem::validate(spec_of(128, KvStorage::paged), {}).spec;
    const planner::SetOfPlans picked =
        planner::plan_set(spec, families::traits_of(90), planner::repository_tuning());
    const problem::Problem problem = problem::validate(spec, {1, 16384, 16384});
    const planner::Choice chosen = planner::choose(picked.set, problem, families::traits_of(90));
    REQUIRE(chosen.candidate != nullptr);
    CHECK(chosen.candidate->kernel.family->needs(chosen.candidate->kernel, families::Role::widen));
    const auto place = static_cast<std::size_t>(chosen.candidate - picked.set.candidates.data());
    const planner::Plan& plan = picked.plans.at(picked.plan_of.at(place));
    CHECK(plan.is_of_set);
    REQUIRE(plan.instead.size() == 1);
    CHECK(plan.instead.front().is_of_set);
    CHECK_FALSE(is_widened(plan.instead.front()));
    const std::vector<families::KernelConfig> all = picked.set.kernels();
    for (const planner::Plan* one : {&plan, &plan.instead.front()})
        for (const planner::Step& step : one->steps) CHECK(std::ranges::find(all, step.kernel) != all.end());
}
