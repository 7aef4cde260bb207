#include "cubins/needed_kernels.hpp"

#include <set>
#include <string>

#include "problem/request/problem.hpp"

namespace attnsmith::engine {

std::vector<families::KernelConfig> needed_kernels(std::span<const AttentionSpec> specs,
                                                   std::span<const int> sms,
                                                   const families::TuningTable& tuning,
                                                   std::vector<PrewarmRefusal>& refused) {
    std::set<families::KernelConfig> kernels;
    for (std::size_t i = 0; i < specs.size(); ++i) {
        std::string not_built;
        AttentionSpec spec;
        try {
            spec = problem::validate(specs[i], PlanSizes{}).spec;
        } catch (const Unsupported& error) {
            not_built = error.what();
        }
        for (int sm : sms) {
            if (!not_built.empty()) {
                refused.push_back({.spec = i, .sm = sm, .name = {}, .reason = not_built});
                continue;
            }
            try {
                for (const families::Candidate& one : planner::kernel_set(spec, sm, tuning).candidates)
                    kernels.insert(one.kernel);
            } catch (const Unsupported& error) {
                refused.push_back({.spec = i, .sm = sm, .name = {}, .reason = error.what()});
            }
        }
    }
    return {kernels.begin(), kernels.end()};
}

}  // namespace attnsmith::engine
