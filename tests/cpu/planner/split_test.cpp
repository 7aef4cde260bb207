// The search for a split passes over chunks that cannot win, and kernels that cannot: what it finds is what
// asking the model of time for each of them finds.
#include <optional>
#include <random>

#include "planner/plan.hpp"
#include "planner/random_problem.hpp"
#include "planner/repository_tuning.hpp"
#include "planner/split.hpp"
#include "problem/ceil_div.hpp"
#include "support/catch.hpp"

using namespace attnsmith;

namespace {

// With the kernels that other specs have not.
AttentionSpec any_spec(std::mt19937& random) {
    AttentionSpec spec = test::random_spec(random);
    switch (random() % 8) {
        case 0:
            spec.precision = Precision::high;
            break;
        case 1:
            spec.consistency = Consistency::bitwise;
            break;
        default:
            break;
    }
    return problem::validate(spec, {}).spec;
}

families::Work work_of(const problem::Problem& problem) {
    const auto& [spec, sizes] = problem;
    return {.sequences_and_heads = sizes.batch * spec.kv_heads,
            .of_each = families::head_work(problem, sizes.q_len, sizes.kv_len)};
}

// The chunks that take the least time, of all lengths.
std::optional<planner::SplitChoice> best_of_all_chunks(const planner::Contender& attention,
                                                       const families::AttentionClocks& clocks) {
    constexpr std::int64_t kLeastKeys = 128;
    std::optional<planner::SplitChoice> best;
    for (std::int64_t wanted = 2; wanted <= planner::kMostSplits; ++wanted) {
        const std::int64_t tiles = problem::ceil_div(clocks.key_tiles(), wanted);
        const std::int64_t keys = tiles * attention.cost.tile_kv;
        const std::int64_t parts = problem::ceil_div(clocks.key_tiles(), tiles);
        if (parts < 2 || tiles < problem::ceil_div(kLeastKeys, attention.cost.tile_kv)) break;
        const planner::Split split{planner::SplitPolicy::chunks, keys, parts};
        if (const double time = clocks.of(split); !best || time < best->clocks) best = {split, time};
    }
    return best;
}

}  // namespace

TEST_CASE("the split is the best of all chunk lengths", "[planner]") {
    constexpr double kLeastGain = 1.05;
    std::mt19937 random(20261125);
    int divided = 0;
    for (int i = 0; i < 200; ++i) {
        const AttentionSpec spec = any_spec(random);
        const planner::KernelSet set = planner::kernel_set(spec, 90, planner::repository_tuning());
        for (int j = 0; j < 50; ++j) {
            const problem::Problem problem = problem::validate(spec, test::random_sizes(random));
            const int sm_count = 1 + static_cast<int>(random() % 300);
            const families::Work work = work_of(problem);
            for (const planner::Contender& one : set.contenders) {
                const families::AttentionClocks clocks(one.cost, sm_count, work);
                const planner::SplitChoice found = planner::best_split(one, sm_count, work);
                REQUIRE(clocks.least() <= found.clocks);
                if (!one.takes_chunks) continue;
                planner::Split wanted{};
                if (const auto best = best_of_all_chunks(one, clocks);
                    best && best->clocks * kLeastGain < clocks.of({}))
                    wanted = best->split;
                REQUIRE(found.split == wanted);
                divided += wanted.policy == planner::SplitPolicy::chunks;
            }
        }
    }
    CHECK(divided > 500);
}

TEST_CASE("what is chosen is the first of those that take the least time", "[planner]") {
    std::mt19937 random(20261126);
    const auto devices = families::known_devices();
    for (int i = 0; i < 400; ++i) {
        const AttentionSpec spec = any_spec(random);
        families::DeviceTraits device = devices[random() % devices.size()];
        device.sm_count = 1 + static_cast<int>(random() % 300);
        const planner::KernelSet set = planner::kernel_set(spec, device.sm, planner::repository_tuning());
        for (int j = 0; j < 20; ++j) {
            const problem::Problem problem = problem::validate(spec, test::random_sizes(random));
            const families::Work work = work_of(problem);
            const families::Candidate* wanted = nullptr;
            planner::SplitChoice best{};
            for (std::size_t k = 0; k < set.contenders.size(); ++k) {
                if (!set.candidates[k].serves(work.of_each.rows())) continue;
                const planner::SplitChoice one =
                    planner::best_split(set.contenders[k], device.sm_count, work);
                if (wanted == nullptr || one.clocks < best.clocks) wanted = &set.candidates[k], best = one;
            }
            const planner::Choice chosen = planner::choose(set, problem, device);
            REQUIRE(chosen.candidate == wanted);
            REQUIRE(chosen.clocks == best.clocks);
            REQUIRE(chosen.split.policy == best.split.policy);
            REQUIRE(chosen.split.keys == best.split.keys);
        }
    }
}
