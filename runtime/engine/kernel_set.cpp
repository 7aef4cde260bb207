#include <algorithm>

#include "attnsmith/runtime.hpp"
#include "engine/held.hpp"
#include "engine/runtime_impl.hpp"
#include "problem/request/problem.hpp"

namespace attnsmith {

using engine::held;

KernelSet::KernelSet() noexcept = default;

const Kernel& KernelSet::pick(const PlanSizes& sizes) const& {
    const Impl& of = held(impl_, "KernelSet");
    if (const auto known = of.picked.find(sizes)) return of.kernels[*known];
    problem::Problem problem = of.problem;
    problem.sizes = sizes;
    problem::check_sizes(problem);
    const planner::Choice chosen = planner::choose(of.set, problem, of.traits);
    if (chosen.candidate == nullptr) throw planner::unserved(of.traits.sm, of.set.rejected);
    const auto place = static_cast<std::size_t>(chosen.candidate - of.set.candidates.data());
    of.picked.keep(sizes, of.kernel_of[place]);
    return of.kernels[of.kernel_of[place]];
}

std::size_t KernelSet::workspace_bytes(const WorkspaceBounds& bounds) const {
    std::size_t bytes = 0;
    for (const Kernel& kernel : kernels()) bytes = std::max(bytes, kernel.workspace_bytes(bounds));
    return bytes;
}

std::span<const Kernel> KernelSet::kernels() const& { return held(impl_, "KernelSet").kernels; }
std::size_t KernelSet::size() const { return kernels().size(); }
const AttentionSpec& KernelSet::spec() const& { return held(impl_, "KernelSet").problem.spec; }
int KernelSet::device() const { return held(impl_, "KernelSet").device; }

}  // namespace attnsmith
