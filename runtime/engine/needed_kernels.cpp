#include "engine/needed_kernels.hpp"

#include <set>

#include "problem/problem.hpp"

namespace attnsmith::engine {

std::vector<planner::KernelConfig> needed_kernels(std::span<const AttentionSpec> specs,
                                                  std::span<const int> sms,
                                                  const planner::TuningTable& tuning,
                                                  std::vector<PrewarmRefusal>& refused) {
    std::set<planner::KernelConfig> kernels;
    for (std::size_t i = 0; i < specs.size(); ++i) {
        for (int sm : sms) {
            try {
                const problem::Problem problem = problem::validate(specs[i], PlanSizes{});
                const planner::KernelSet set = planner::kernel_set(problem.spec, sm, tuning);
                kernels.insert(set.kernels.begin(), set.kernels.end());
            } catch (const Unsupported& error) {
                refused.push_back({i, sm, error.what()});
            }
        }
    }
    return {kernels.begin(), kernels.end()};
}

}  // namespace attnsmith::engine
