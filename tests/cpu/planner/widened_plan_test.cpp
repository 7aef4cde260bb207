// Keys of 8 bits that are widened into the workspace before an attention of many queries.
#include <algorithm>

#include "abi/widen_arguments.h"
#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using planner::Role;

namespace {

AttentionSpec spec_of(std::int64_t head_dim, KvStorage kv) {
    AttentionSpec spec{.head_dim_qk = head_dim, .q_heads = 32, .kv_heads = 8};
    spec.mask = Mask::causal;
    spec.kv_dtype = DType::e4m3;
    spec.kv = kv;
    spec.page_size = kv == KvStorage::paged ? 16 : 0;
    return spec;
}

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
        CHECK(plan.steps[1].kernel.family->reads_widened(plan.steps[1].kernel));
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
    spec.window_left = 100000;
    CHECK(is_widened(plan_of(spec, {1, 2048, 131072})));
}

TEST_CASE("widened keys take a workspace that is said, and no more than a bound", "[planner][widen]") {
    const AttentionSpec spec = spec_of(128, KvStorage::paged);
    const planner::Plan plan = plan_of(spec, {2, 8192, 8192});
    REQUIRE(is_widened(plan));
    const problem::BoundShape shape{.batch = 3, .q_tokens = 100, .max_q_len = 60, .max_kv_len = 5001};
    const planner::Launch launch = planner::launch_of(plan, shape);
    const std::int64_t rows = 3 * 8 * 5001;
    CHECK(launch.workspace.bytes >= rows * 256 * 2);
    CHECK(launch.workspace.widened_k_offset % 256 == 0);
    CHECK(launch.workspace.widened_v_offset >= launch.workspace.widened_k_offset + rows * 128 * 2);
    CHECK(launch.workspace.bytes >= launch.workspace.widened_v_offset + rows * 128 * 2);
    // 64 keys a CTA, of each KV head.
    CHECK(launch.extents[0].ctas == 3 * 8 * 79);
    // Without queries there is nothing to do.
    CHECK(planner::launch_of(plan, {.batch = 3, .max_kv_len = 5001}).extents[0].ctas == 0);

    const planner::Plan large = plan_of(spec, {16, 16384, 65536});
    CHECK_FALSE(is_widened(large));
    CHECK(std::ranges::any_of(large.rejected, [](const Refusal& one) {
        return one.reason == "its workspace would take 4096 MiB for widened keys; at most 1024 are taken";
    }));
}

TEST_CASE("a kernel set has what widens, for who plans with sizes, and picks of it what needs none",
          "[planner][widen]") {
    const AttentionSpec spec = problem::validate(spec_of(128, KvStorage::paged), {}).spec;
    const auto has_widen = [](const planner::KernelSet& set) {
        return std::ranges::any_of(set.candidates, [](const families::Candidate& one) {
            return one.kernel.family->role() == Role::widen || one.kernel.family->reads_widened(one.kernel);
        });
    };
    const planner::KernelSet all = planner::kernel_set(spec, 90, planner::repository_tuning());
    CHECK(has_widen(all));
    const planner::SetOfPlans picked =
        planner::plan_set(spec, families::traits_of(90), planner::repository_tuning());
    CHECK_FALSE(has_widen(picked.set));
    CHECK(picked.set.contenders.size() + 1 == all.contenders.size());
    CHECK(std::ranges::any_of(picked.set.rejected, [](const Refusal& one) {
        return one.reason == "its workspace grows with all keys: for planned sizes alone";
    }));
}
