// From a problem to its loaded kernels.
#include <fmt/format.h>

#include <cstddef>
#include <future>
#include <utility>
#include <vector>

#include "cubins/missing_kernel.hpp"
#include "engine/runtime_impl.hpp"
#include "ops/op.hpp"
#include "problem/request/problem.hpp"

namespace attnsmith {
namespace {

std::string summary_of(const planner::Plan& plan) {
    const planner::Step* attention = plan.find(planner::Role::attention);
    if (attention == nullptr) return plan.steps.front().kernel.name();
    return fmt::format("{}, {}", attention->kernel.name(), families::describe(plan.split));
}

// Sizes that were most likely never given. Merges and appends are planned alike for all sizes.
bool is_unsized(const problem::Problem& problem) {
    return ops::op_traits(problem.spec.op).divides_keys && problem.sizes == PlanSizes{};
}

// Does the task `count` times in the caller's context of the device: once on this thread, and beside it on
// threads of their own if there are any to be had. Throws what one of them threw, when all are done.
template <typename Task>
void do_each(const driver::Api& api, int device, std::size_t count, const Task& task) {
    const driver::ContextScope scope(api, device);
    std::vector<std::future<void>> others;
    for (std::size_t i = 1; i < count; ++i) {
        others.push_back(std::async(std::launch::async | std::launch::deferred, [&, i] {
            const driver::ContextScope same(api, scope.context());
            task(i);
        }));
    }
    task(0);
    for (std::future<void>& other : others) other.get();
}

}  // namespace

Kernel Runtime::Impl::prepare_once(const engine::PreparedKey& key, cache::Urgency urgency) {
    if (auto known = prepared.find(key)) return *std::move(known);
    return prepared.keep(key, prepare(key.spec, key.sizes, key.device, urgency));
}

Kernel Runtime::Impl::prepare(const AttentionSpec& spec, const PlanSizes& sizes, int device,
                              cache::Urgency urgency) {
    const problem::Problem problem = problem::validate(spec, sizes);
    recorder.record(problem);
    planner::Plan plan = planner::make_plan(problem, traits(device), tuning);
    (*log)(LogLevel::info, "{}: {}", plan.device.name, summary_of(plan));
    if (is_unsized(problem)) {
        (*log)(LogLevel::warn,
               "{}: planned for 1 query and 1 key of 1 sequence, the sizes of PlanSizes{{}}; a prefill or a "
               "long decode is slow then: give the sizes that are typical",
               to_string(problem.spec.op));
    }
    for (const auto* refusals : {&plan.rejected, &plan.unused}) {
        for (const Refusal& refusal : *refusals)
            (*log)(LogLevel::debug, "not {}: {}", refusal.candidate, refusal.reason);
    }
    return load(std::move(plan), device, urgency);
}

Kernel Runtime::Impl::load(planner::Plan plan, int device, cache::Urgency urgency) {
    try {
        return load_all(plan, device, urgency);
    } catch (const engine::CubinMissing& missing) {
        throw engine::missing_kernel(settings, plan, missing);
    }
}

KernelSet Runtime::Impl::prepare_set(const AttentionSpec& spec, int device) {
    auto set = std::make_shared<KernelSet::Impl>();
    set->problem = problem::validate(spec, PlanSizes{});
    recorder.record(set->problem);
    set->device = device;
    set->traits = traits(device);
    planner::SetOfPlans made = planner::plan_set(set->problem.spec, set->traits, tuning);
    (*log)(LogLevel::info, "{}: a set of {} kernels", set->traits.name, made.plans.size());
    set->kernels.resize(made.plans.size());
    do_each(*driver(), device, made.plans.size(), [&](std::size_t i) {
        set->kernels[i] = load(std::move(made.plans[i]), device, cache::Urgency::caller);
    });
    set->set = std::move(made.set);
    set->kernel_of = std::move(made.plan_of);
    KernelSet handle;
    handle.impl_ = std::move(set);
    return handle;
}

Kernel Runtime::Impl::load_all(planner::Plan plan, int device, cache::Urgency urgency) {
    struct ToLoad {
        Kernel::Impl* of;
        std::size_t step;
    };
    std::vector<ToLoad> to_load;
    const auto of_plan = [&](planner::Plan&& one) {
        auto kernel = std::make_shared<Kernel::Impl>();
        kernel->api = driver();
        kernel->device = device;
        kernel->allocator = allocator;
        kernel->plan = std::move(one);
        kernel->loaded.resize(kernel->plan.steps.size());
        for (std::size_t step = 0; step < kernel->loaded.size(); ++step)
            to_load.push_back({kernel.get(), step});
        return kernel;
    };
    const auto kernel = of_plan(std::move(plan));
    // A copy: the plan says what it has instead.
    if (!kernel->plan.instead.empty()) kernel->instead = of_plan(planner::Plan(kernel->plan.instead.front()));
    do_each(*driver(), device, to_load.size(), [&](std::size_t i) {
        const auto& [of, step] = to_load[i];
        of->loaded[step] = loaded.get(driver(), device, of->plan.steps[step].kernel, urgency);
    });
    Kernel handle;
    handle.impl_ = kernel;
    return handle;
}

}  // namespace attnsmith
