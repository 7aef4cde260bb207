// From a problem to its loaded kernels.
#include <fmt/format.h>

#include <future>

#include "engine/cubins/missing_kernel.hpp"
#include "engine/runtime_impl.hpp"
#include "problem/request/problem.hpp"

namespace attnsmith {
namespace {

std::string summary_of(const planner::Plan& plan) {
    const planner::Step* attention = plan.find(planner::Role::attention);
    if (attention == nullptr) return plan.steps.front().kernel.name();
    return fmt::format("{}, {}", attention->kernel.name(), families::describe(plan.split));
}

}  // namespace

Kernel Runtime::Impl::prepare_once(const engine::PreparedKey& key) {
    if (auto known = prepared.find(key)) return *std::move(known);
    return prepared.keep(key, prepare(key.spec, key.sizes, key.device));
}

Kernel Runtime::Impl::prepare(const AttentionSpec& spec, const PlanSizes& sizes, int device) {
    const problem::Problem problem = problem::validate(spec, sizes);
    recorder.record(problem);
    planner::Plan plan = planner::make_plan(problem, traits(device), tuning);
    (*log)(LogLevel::info, "{}: {}", plan.device.name, summary_of(plan));
    for (const Refusal& refusal : plan.rejected) {
        (*log)(LogLevel::debug, "not {}: {}", refusal.candidate, refusal.reason);
    }
    return load(std::move(plan), device);
}

Kernel Runtime::Impl::load(planner::Plan plan, int device) {
    try {
        return load_all(plan, device);
    } catch (const engine::CubinMissing& missing) {
        throw engine::missing_kernel(settings, plan, missing);
    }
}

Kernel Runtime::Impl::load_all(planner::Plan plan, int device) {
    auto kernel = std::make_shared<Kernel::Impl>();
    kernel->api = driver();
    kernel->device = device;
    kernel->allocator = allocator;
    kernel->plan = std::move(plan);
    const std::vector<planner::Step>& steps = kernel->plan.steps;
    kernel->loaded.resize(steps.size());
    const driver::ContextScope scope(*driver(), device);
    const auto obtain = [&](std::size_t step) {
        kernel->loaded[step] = loaded.get(driver(), device, steps[step].kernel);
    };
    // The others on threads of their own if there are any to be had; in the caller's context there, too.
    std::vector<std::future<void>> others;
    for (std::size_t i = 1; i < steps.size(); ++i) {
        others.push_back(std::async(std::launch::async | std::launch::deferred, [&, i] {
            const driver::ContextScope same(*driver(), scope.context());
            obtain(i);
        }));
    }
    obtain(0);
    for (std::future<void>& other : others) other.get();
    Kernel handle;
    handle.impl_ = kernel;
    return handle;
}

}  // namespace attnsmith
