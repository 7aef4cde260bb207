// What is chosen for usual problems: a change of the model of costs, or of a tuning table, shows here as what
// it is, a change of plans. Measured plans stand in the tuning tables; the others are the model's, ranked
// against each other.
#include <fmt/format.h>

#include <string>

#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"
#include "support/catch.hpp"

using namespace attnsmith;

namespace {

AttentionSpec heads(std::int64_t dim, std::int64_t q_heads, std::int64_t kv_heads, Mask mask = Mask::causal) {
    return {.head_dim_qk = dim, .q_heads = q_heads, .kv_heads = kv_heads, .mask = mask};
}

AttentionSpec windowed(std::int64_t left, std::int64_t right) {
    AttentionSpec spec = heads(128, 32, 8, Mask::full);
    spec.window_left = left, spec.window_right = right;
    return spec;
}

// The backend, its tiles and the split.
std::string choice(const AttentionSpec& spec, const PlanSizes& sizes, int sm) {
    const planner::Plan plan = planner::make_plan(problem::validate(spec, sizes), families::traits_of(sm),
                                                  planner::repository_tuning());
    const families::KernelConfig& kernel = plan.kernel(planner::Role::attention);
    return fmt::format(
        "{} {}x{} stages {}{}", to_string(kernel.backend()), kernel.tile_q(), kernel.tile_kv(),
        kernel.stages(),
        plan.split.policy == planner::SplitPolicy::none ? "" : ", " + families::describe(plan.split));
}

const AttentionSpec kLlama = heads(128, 32, 8);

}  // namespace

TEST_CASE("plans of usual problems", "[planner]") {
    struct Case {
        AttentionSpec spec;
        PlanSizes sizes;
        int sm;
        const char* wanted;
    };
    const Case cases[] = {
        {kLlama, {1, 1, 1024}, 90, "mma 16x128 stages 3, 132 equal shares"},
        {kLlama, {1, 1, 16384}, 90, "mma 16x128 stages 3, 132 equal shares"},
        {kLlama, {1, 1, 131072}, 90, "mma 16x128 stages 3, 132 equal shares"},
        {kLlama, {8, 1, 4096}, 90, "mma 16x128 stages 3, 132 equal shares"},
        {kLlama, {64, 1, 4096}, 90, "mma 16x128 stages 3, 132 equal shares"},
        {kLlama, {8, 1, 4096}, 80, "mma 16x64 stages 2, 216 equal shares"},
        {kLlama, {8, 1, 4096}, 89, "mma 16x64 stages 1, 284 equal shares"},
        {kLlama, {1, 1, 1024}, 120, "mma 16x64 stages 1, 340 equal shares"},
        {kLlama, {1, 4, 16384}, 89, "mma 16x64 stages 1, 284 equal shares"},
        {kLlama, {1, 17, 300}, 89, "mma 16x64 stages 1, 284 equal shares"},
        {kLlama, {1, 8, 32768}, 90, "wgmma 64x64 stages 2, 264 equal shares"},
        {kLlama, {8, 16, 8192}, 90, "wgmma 64x64 stages 2, 264 equal shares"},
        {kLlama, {1, 512, 512}, 90, "wgmma 128x128 stages 2"},
        {kLlama, {1, 512, 512}, 80, "mma 64x64 stages 2, 216 equal shares"},
        {kLlama, {1, 128, 16384}, 90, "wgmma 192x64 stages 3, 6 chunks of 3264 keys"},
        {kLlama, {1, 128, 16384}, 89, "mma 64x64 stages 1, 284 equal shares"},
        {kLlama, {8, 4096, 4096}, 90, "wgmma 128x128 stages 2"},
        {kLlama, {8, 4096, 4096}, 80, "mma 64x64 stages 2"},
        {kLlama, {1, 300, 300}, 89, "mma 64x64 stages 1"},
        {heads(64, 8, 8), {2, 1, 700}, 80, "mma 16x64 stages 3, 324 equal shares"},
        {heads(64, 8, 8), {2, 64, 1000}, 80, "mma 16x64 stages 3"},
        {heads(256, 16, 8), {1, 1, 8192}, 90, "mma 16x64 stages 2, 132 equal shares"},
        {heads(256, 16, 8), {4, 2048, 2048}, 90, "wgmma 128x64 stages 2"},
        {heads(256, 16, 8), {4, 2048, 2048}, 86, "mma 128x32 stages 1, 72 equal shares"},
        {heads(128, 32, 8, Mask::full), {1, 64, 256}, 89, "mma 16x64 stages 1"},
        {windowed(1023, 0), {1, 1, 65536}, 90, "mma 16x128 stages 3, 132 equal shares"},
        {windowed(127, 4000), {1, 1, 65536}, 89, "mma 16x64 stages 1, 284 equal shares"},
        {windowed(1023, 1023), {2, 2048, 4096}, 80, "mma 64x64 stages 2"},
    };
    for (const auto& [spec, sizes, sm, wanted] : cases) {
        CAPTURE(spec.head_dim_qk, sizes.batch, sizes.q_len, sizes.kv_len, sm);
        CHECK(choice(spec, sizes, sm) == wanted);
    }
}

TEST_CASE("a tuning table tells windows from a causal mask by any bound of their own", "[planner][tuning]") {
    const auto mask_of = [](const AttentionSpec& spec) {
        return families::match_of(problem::validate(spec, {}).spec, 90).mask;
    };
    AttentionSpec spec = heads(128, 8, 8, Mask::full);
    CHECK(mask_of(spec) == families::MaskClass::full);
    spec.window_right = 7;
    CHECK(mask_of(spec) == families::MaskClass::window);
    spec.window_left = 7;
    CHECK(mask_of(spec) == families::MaskClass::window);
    spec.window_right.reset();
    CHECK(mask_of(spec) == families::MaskClass::window);
    spec.mask = Mask::causal;
    CHECK(mask_of(spec) == families::MaskClass::window);
    spec.window_left.reset();
    CHECK(mask_of(spec) == families::MaskClass::causal);
}
