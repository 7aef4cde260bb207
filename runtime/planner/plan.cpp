#include "planner/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "families/registry.hpp"
#include "planner/split.hpp"

namespace attnsmith::planner {
namespace {

using families::Candidate;

// With precision "high" what is computed is right to 1e-5, and then rounded once to what O is stored as.
Numerics numerics_of(const AttentionSpec& spec) {
    if (spec.precision == Precision::high) {
        constexpr double kComputed = 1e-5;
        const DType output = problem::output_dtype(spec);
        const double rounding = output == DType::f32 ? 0.0 : output == DType::f16 ? 0x1p-11 : 0x1p-8;
        return {kComputed, kComputed + rounding};
    }
    const double tolerance = spec.dtype == DType::f16 ? 1e-3 : 1e-2;
    return {tolerance, tolerance};
}

Unsupported unserved(int sm, const std::vector<Refusal>& rejected) {
    return {fmt::format("no kernel for this attention on sm_{}", sm), rejected};
}

const KernelConfig& kernel_of_role(const KernelSet& set, Role role) {
    return std::ranges::find(set.candidates, role,
                             [](const Candidate& one) { return one.kernel.family->role(); })
        ->kernel;
}

// Whether a kernel of the set leaves it something to do.
bool needs_merge_of_splits(const KernelSet& set) {
    return std::ranges::any_of(set.candidates, [](const Candidate& one) {
        return one.kernel.family->takes(one.kernel, SplitPolicy::chunks);
    });
}

// The attentions of the set that are there for so many packed query rows; why not the others goes to
// `rejected`.
std::vector<Candidate> rivals(const KernelSet& set, std::int64_t rows, std::vector<Refusal>& rejected) {
    std::vector<Candidate> serving;
    for (const Candidate& one : set.candidates)
        if (one.kernel.family->role() == Role::attention && one.serves(rows)) serving.push_back(one);
    for (const Candidate& one : set.candidates) {
        if (one.kernel.family->role() != Role::attention || one.serves(rows)) continue;
        if (std::ranges::find(serving, one.kernel, &Candidate::kernel) != serving.end()) continue;
        rejected.push_back({one.kernel.name(),
                            rows <= one.above ? fmt::format("for more than {} packed query rows", one.above)
                                              : fmt::format("for up to {} packed query rows", *one.up_to)});
    }
    return serving;
}

struct Choice {
    SplitChoice best{};
    const Candidate* candidate = nullptr;
};

// The attention and its split, which go to the plan.
void choose_attention(const KernelSet& set, Plan& plan) {
    const auto& [spec, sizes] = plan.problem;
    const families::Work work{.sequences_and_heads = sizes.batch * spec.kv_heads,
                              .of_each = families::head_work(plan.problem, sizes.q_len, sizes.kv_len)};
    const std::vector<Candidate> kernels = rivals(set, work.of_each.rows(), plan.rejected);
    if (kernels.empty()) throw unserved(plan.device.sm, plan.rejected);
    std::vector<Choice> choices;
    for (const Candidate& one : kernels)
        choices.push_back({best_split(one.kernel, set, plan.device, work), &one});
    const Choice chosen =
        *std::ranges::min_element(choices, {}, [](const Choice& choice) { return choice.best.clocks; });
    plan.steps.push_back({chosen.candidate->kernel, chosen.candidate->source});
    plan.split = chosen.best.split;
    if (plan.split.policy == SplitPolicy::chunks) {
        // Chunks were counted over the keys that a row sees, and lie over all keys.
        plan.split.parts = std::max<std::int64_t>(1, problem::ceil_div(sizes.kv_len, plan.split.keys));
        plan.steps.push_back({set.merge_of_splits()});
    }
    for (const Choice& choice : choices) {
        if (choice.candidate == chosen.candidate) continue;
        plan.rejected.push_back(
            {choice.candidate->kernel.name(),
             fmt::format("estimated {:.2f}x the time of the chosen kernel for {} packed query rows",
                         choice.best.clocks / chosen.best.clocks, work.of_each.rows())});
    }
}

// The kernel of its one role, which there is one of.
void choose_merge(const KernelSet& set, Plan& plan) {
    plan.steps.push_back({kernel_of_role(set, Role::merge_states)});
}

// What planning makes of each op. problem/request/ops.hpp has the other columns; this one knows families, so
// it cannot stand there.
struct OpPlanning {
    Op op;
    std::span<const Role> roles;  // what a plan is made of, in the order of launches
    void (*choose)(const KernelSet& set, Plan& plan);
};

constexpr Role kOfAttention[] = {Role::attention, Role::merge_splits};
constexpr Role kOfMerge[] = {Role::merge_states};
constexpr OpPlanning kOps[] = {
    {Op::attention, kOfAttention, choose_attention},
    {Op::merge, kOfMerge, choose_merge},
};

// REQUIRES: the op is built.
const OpPlanning& planning_of(Op op) { return *std::ranges::find(kOps, op, &OpPlanning::op); }

}  // namespace

const Step* Plan::find(Role role) const {
    const auto found = std::ranges::find(steps, role, &Step::role);
    return found == steps.end() ? nullptr : &*found;
}

const KernelConfig& KernelSet::merge_of_splits() const { return kernel_of_role(*this, Role::merge_splits); }

std::vector<KernelConfig> KernelSet::kernels() const {
    std::vector<KernelConfig> each;
    for (const Candidate& one : candidates)
        if (std::ranges::find(each, one.kernel) == each.end()) each.push_back(one.kernel);
    return each;
}

KernelSet kernel_set(const AttentionSpec& spec, int sm, const TuningTable& tuning) {
    const SmTraits& traits = families::traits_of(sm);
    KernelSet set;
    for (const Role role : planning_of(spec.op).roles) {
        if (role == Role::merge_splits && !needs_merge_of_splits(set)) continue;
        const std::size_t before = set.candidates.size();
        for (const families::Family* family : families::all_families()) {
            if (family->role() != role) continue;
            std::ranges::move(family->candidates(spec, traits, tuning, set.rejected),
                              std::back_inserter(set.candidates));
        }
        if (set.candidates.size() == before) throw unserved(sm, set.rejected);
    }
    return set;
}

Plan make_plan(const problem::Problem& problem, const DeviceTraits& device, const TuningTable& tuning) {
    KernelSet set = kernel_set(problem.spec, device.sm, tuning);
    Plan plan{.problem = problem, .device = device, .numerics = numerics_of(problem.spec)};
    plan.rejected = std::move(set.rejected);
    planning_of(problem.spec.op).choose(set, plan);
    return plan;
}

Plan with_attention(Plan plan, const KernelConfig& attention, const Split& split, const TuningTable& tuning) {
    plan.steps = {{attention}};
    plan.split = attention.family->takes(attention, split.policy) ? split : shares_of(attention, plan.device);
    if (plan.split.policy == SplitPolicy::chunks)
        plan.steps.push_back({kernel_set(plan.problem.spec, plan.device.sm, tuning).merge_of_splits()});
    return plan;
}

}  // namespace attnsmith::planner
