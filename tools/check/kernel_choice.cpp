#include "check/kernel_choice.hpp"
#include "problem/ceil_div.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "engine/runtime_impl.hpp"
#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"
#include "problem/request/problem.hpp"

namespace attnsmith::check {
namespace {

using families::KernelConfig;

bool is(const KernelConfig& kernel, const KernelChoice& choice) {
    return kernel.tile_q() == choice.tile_q && kernel.tile_kv() == choice.tile_kv &&
           kernel.stages() == choice.stages &&
           (kernel.backend() == families::Backend::wgmma) == choice.wgmma &&
           (kernel.constants.integer("shares") != 0) == choice.shares &&
           kernel.family->needs(kernel, families::Role::widen) == choice.widened_ahead;
}

// `visit` gets each attention kernel of each SM's set, until it returns true. `spec` is a validated one's.
template <typename Visit>
bool visit_kernels(const AttentionSpec& spec, const Visit& visit) {
    for (const families::DeviceTraits& device : families::known_devices()) {
        try {
            for (const KernelConfig& kernel :
                 planner::kernel_set(spec, device.sm, planner::repository_tuning()).kernels())
                if (kernel.family->role() == families::Role::attention && visit(kernel)) return true;
        } catch (const Unsupported&) {
            // Another SM may serve it.
        }
    }
    return false;
}

// CTAs of a forced split: enough to divide what tests have, and their workspace, which is uploaded for each
// case, is a few megabytes.
constexpr std::int64_t kForcedCtas = 60;

KernelConfig config_of(const AttentionSpec& spec, const KernelChoice& choice,
                       const families::DeviceTraits& device) {
    KernelConfig config;
    const bool found = visit_kernels(spec, [&](const KernelConfig& kernel) {
        if (is(kernel, choice)) config = kernel;
        return is(kernel, choice);
    });
    if (!found) throw std::logic_error("no SM's kernel set has " + to_string(choice));
    if (choice.wgmma) {
        if (config.sm != device.sm)
            throw NotHere(
                fmt::format("{} needs sm_{}; this is sm_{}", to_string(choice), config.sm, device.sm));
        return config;
    }
    config.sm = device.sm;
    config.target = fmt::format("sm_{}", device.sm);
    if (config.shared_bytes > device.shared_bytes_per_block)
        throw NotHere(fmt::format("{} needs {} bytes of shared memory; sm_{} has {}", to_string(choice),
                                  config.shared_bytes, device.sm, device.shared_bytes_per_block));
    return config;
}

}  // namespace

std::vector<KernelChoice> kernel_choices(const AttentionSpec& spec) {
    std::vector<KernelChoice> choices;
    visit_kernels(problem::validate(spec, {}).spec, [&](const KernelConfig& kernel) {
        if (std::none_of(choices.begin(), choices.end(), [&](const auto& c) { return is(kernel, c); }))
            choices.push_back({.tile_q = kernel.tile_q(),
                               .tile_kv = kernel.tile_kv(),
                               .stages = kernel.stages(),
                               .wgmma = kernel.backend() == families::Backend::wgmma,
                               .shares = kernel.constants.integer("shares") != 0,
                               .widened_ahead = kernel.family->needs(kernel, families::Role::widen)});
        return false;
    });
    return choices;
}

std::int64_t chunk_of(const KernelChoice& choice, std::int64_t keys) {
    return (keys + choice.tile_kv - 1) / choice.tile_kv * choice.tile_kv;
}

Kernel prepare_case(Runtime& runtime, const Case& test) {
    const PlanSizes sizes = test.plan_sizes();
    if (!test.kernel) return runtime.prepare(test.spec, sizes);
    engine::RuntimeImpl& impl = engine::impl_of(runtime);
    const int device = impl.ordinal_of(kCurrentDevice);
    planner::Plan plan =
        planner::make_plan(problem::validate(test.spec, sizes), impl.traits(device), impl.tuning);
    const std::int64_t chunk = test.kernel->chunk;
    const KernelConfig attention = config_of(plan.problem.spec, *test.kernel, plan.device);
    planner::Split split;
    if (chunk > 0 && families::takes(attention, planner::SplitPolicy::chunks))
        split = {planner::SplitPolicy::chunks, chunk,
                 std::max<std::int64_t>(1, problem::ceil_div(sizes.kv_len, chunk))};
    else if (chunk > 0)
        split = {planner::SplitPolicy::shares, chunk,
                 test.kernel->ctas > 0 ? test.kernel->ctas : kForcedCtas};
    plan = planner::with_attention(std::move(plan), attention, split, impl.tuning);
    return impl.load(std::move(plan), device);
}

}  // namespace attnsmith::check
