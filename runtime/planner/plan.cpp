#include "planner/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <ranges>
#include <span>

#include "abi/widen_arguments.h"
#include "families/key_bounds.hpp"
#include "families/launch.hpp"
#include "families/registry/registry.hpp"
#include "families/widening.hpp"
#include "ops/op.hpp"
#include "planner/split.hpp"
#include "problem/request/request_fields.hpp"

namespace attnsmith::planner {
namespace {

using families::Candidate;

// With precision "high" what is computed is right to 1e-5, and then rounded once to what O is stored as.
Numerics numerics_of(const AttentionSpec& spec) {
    if (ops::op_traits(spec.op).is_exact) return {};
    if (spec.precision == Precision::high) {
        constexpr double kComputed = 1e-5;
        const DType output = problem::output_dtype(spec);
        const double rounding = output == DType::fp32 ? 0.0 : output == DType::fp16 ? 0x1p-11 : 0x1p-8;
        return {kComputed, kComputed + rounding};
    }
    const double tolerance = spec.dtype == DType::fp16 ? 1e-3 : 1e-2;
    return {tolerance, tolerance};
}

const Candidate* find_role(const KernelSet& set, Role role) {
    const auto found = std::ranges::find(set.candidates, role,
                                         [](const Candidate& one) { return one.kernel.family->role(); });
    return found == set.candidates.end() ? nullptr : &*found;
}

// Decode is bound by memory and by what a launch costs, where the model of costs does not tell tiles apart
// well enough to rank them. So where a kernel is made for it, only kernels of as few rows stay next to it.
void leave_decode_to_its_kernel(std::vector<Candidate>& candidates) {
    const auto is_for_decode = [](const Candidate& one) {
        return families::attention_of(one.kernel).is_for_decode(one.kernel);
    };
    if (std::ranges::none_of(candidates, is_for_decode)) return;
    for (Candidate& one : candidates) {
        const bool is_of_few_rows = one.up_to && *one.up_to <= families::kDecodeRows;
        if (!is_for_decode(one) && !is_of_few_rows)
            one.above = std::max<std::int64_t>(one.above, families::kDecodeRows);
    }
}

// Where a family serves all sizes, kernels of other families would be the best for a few sizes by the
// estimates, and would cost their compilation.
void leave_larger_tiles_to_one_family(const AttentionSpec& spec, KernelSet& set) {
    for (auto first = set.candidates.begin(); first != set.candidates.end();) {
        const families::Family* const family = first->kernel.family;
        const auto end = std::find_if(first, set.candidates.end(),
                                      [&](const Candidate& one) { return one.kernel.family != family; });
        const std::optional<int> rows = family->attention()->most_rows_of_other_families(spec, {first, end});
        if (!rows) {
            first = end;
            continue;
        }
        std::erase_if(set.candidates, [&](const Candidate& one) {
            if (one.kernel.family == family || one.kernel.tile_q() <= *rows) return false;
            const std::string_view others = to_string(family->backend());
            set.rejected.push_back(
                {one.kernel.name(),
                 *rows == 0 ? fmt::format("all tiles are {}'s", others)
                            : fmt::format("tiles of more than {} rows are {}'s alone", *rows, others)});
            return true;
        });
        return;
    }
}

families::Work work_of(const problem::Problem& problem) {
    const auto& [spec, sizes] = problem;
    return {.sequences_and_heads = sizes.batch * spec.kv_heads,
            .of_each = families::head_work(problem, sizes.q_len, sizes.kv_len)};
}

bool reads_widened(const KernelConfig& kernel) { return kernel.family->needs(kernel, Role::widen); }

// Keys that are widened before an attention: from the first that the first query sees on.
std::int64_t widened_keys(const problem::Problem& problem) {
    const auto& [spec, sizes] = problem;
    const auto kv_len = static_cast<std::int32_t>(sizes.kv_len);
    const auto first_query = static_cast<std::int32_t>(sizes.kv_len - sizes.q_len);
    return sizes.kv_len - families::bounds_of(spec).seen_from(first_query, kv_len).first;
}

// What that takes, beside the attention: a launch, and each column as it is stored and as it is widened.
double widening_clocks(const problem::Problem& problem, const DeviceTraits& device) {
    constexpr double kLaunchClocks = 6000;
    // A part of device memory's: what is widened has to leave L2, too, while the attention begins to read it.
    constexpr double kRate = 0.4;
    const auto& [spec, sizes] = problem;
    const double columns = static_cast<double>(sizes.batch * spec.kv_heads * widened_keys(problem)) *
                           static_cast<double>(spec.head_dim_qk + spec.head_dim_vo);
    const double rate = device.dram_bytes * kRate * device.sm_count;
    return kLaunchClocks + columns * (1 + abi::kWidenedBytes) / rate;
}

problem::BoundShape keys_of(const PlanSizes& sizes) {
    return {.batch = sizes.batch, .max_kv_len = sizes.kv_len};
}

// The set's main kernels, of an op that divides keys.
std::span<const Candidate> attentions(const KernelSet& set) {
    return {set.candidates.data(), set.contenders.size()};
}

// One attention and its best split, with what comes before it.
Choice with_best_split(const Candidate& one, const KernelSet& set, const problem::Problem& problem,
                       const families::Work& work, const DeviceTraits& device, double limit = kNoLimit) {
    const Contender& contender = set.contenders[static_cast<std::size_t>(&one - set.candidates.data())];
    const double before = reads_widened(one.kernel) ? widening_clocks(problem, device) : 0.0;
    const SplitChoice best = best_split(contender, device.sm_count, work, limit - before);
    return {&one, best.split, best.clocks + before};
}

enum class Widening : std::uint8_t { allowed, refused };

// Whether the attention is there for these sizes, of so many packed query rows.
bool serves(const Candidate& one, const problem::Problem& problem, std::int64_t rows,
            Widening widening = Widening::allowed) {
    if (!one.serves(rows)) return false;
    return !reads_widened(one.kernel) || (widening == Widening::allowed &&
                                          families::has_room_to_widen(problem.spec, keys_of(problem.sizes)));
}

// The attention that is there for so many packed query rows and takes the least time: the first of equals.
// From the last to the first, since those that take shares are found out soonest, and then bound the search
// for the others' chunks.
Choice choose_among_attentions(const KernelSet& set, const problem::Problem& problem,
                               const DeviceTraits& device, Widening widening) {
    const families::Work work = work_of(problem);
    const std::int64_t rows = work.of_each.rows();
    Choice best{.clocks = kNoLimit};
    for (const Candidate& one : std::views::reverse(attentions(set))) {
        if (!serves(one, problem, rows, widening)) continue;
        const Choice choice = with_best_split(one, set, problem, work, device, best.clocks);
        if (choice.clocks <= best.clocks) best = choice;
    }
    // Chunks were counted over the keys that a row sees, and lie over all keys.
    if (best.split.policy == SplitPolicy::chunks) {
        best.split.parts =
            std::max<std::int64_t>(1, problem::ceil_div(problem.sizes.kv_len, best.split.keys));
    }
    return best;
}

// Why not the other attentions: those that are not there for so many rows, then those that take longer.
void explain_attention(const KernelSet& set, const Choice& chosen, Plan& plan) {
    const families::Work work = work_of(plan.problem);
    const std::int64_t rows = work.of_each.rows();
    for (const Candidate& one : attentions(set)) {
        if (serves(one, plan.problem, rows)) continue;
        if (one.serves(rows)) {
            const std::int64_t bytes =
                families::widened_bytes(plan.problem.spec, keys_of(plan.problem.sizes));
            plan.unused.push_back(
                {one.kernel.name(),
                 fmt::format("its workspace would take {} MiB for widened keys; at most {} are taken",
                             bytes >> 20, families::kMostWidenedBytes >> 20)});
            continue;
        }
        if (std::ranges::any_of(attentions(set), [&](const Candidate& other) {
                return other.serves(rows) && other.kernel == one.kernel;
            }))
            continue;
        plan.unused.push_back(
            {one.kernel.name(), rows <= one.above
                                    ? fmt::format("for more than {} packed query rows", one.above)
                                    : fmt::format("for up to {} packed query rows", *one.up_to)});
    }
    for (const Candidate& one : attentions(set)) {
        if (!serves(one, plan.problem, rows) || &one == chosen.candidate) continue;
        plan.unused.push_back(
            {one.kernel.name(),
             fmt::format("estimated {:.2f}x the time of the chosen kernel for {} packed query rows",
                         with_best_split(one, set, plan.problem, work, plan.device).clocks / chosen.clocks,
                         rows)});
    }
}

Plan plan_of(const problem::Problem& problem, const DeviceTraits& device, const KernelSet& set) {
    return {.problem = problem,
            .device = device,
            .numerics = numerics_of(problem.spec),
            .rejected = set.rejected};
}

// In the order of their launches. `merges`: the main step's chunks are joined.
void add_steps(const KernelSet& set, const Step& main, bool merges, Plan& plan) {
    const ops::OpTraits& op = ops::op_traits(plan.problem.spec.op);
    for (const Role role : op.steps) {
        if (role == op.main)
            plan.steps.push_back(main);
        else if (role == Role::merge_splits ? merges : main.kernel.family->needs(main.kernel, role))
            plan.steps.push_back({find_role(set, role)->kernel});
    }
}

// Whether a kernel of the set may need one of that role, too.
bool needs(const KernelSet& set, Role role) {
    return std::ranges::any_of(
        set.candidates, [&](const Candidate& one) { return one.kernel.family->needs(one.kernel, role); });
}

// What is launched instead of a plan that widens, for the same or, of a set, for long prefills.
Plan without_widening(const KernelSet& set, const Plan& plan) {
    constexpr PlanSizes kLong{.batch = 1, .q_len = 8192, .kv_len = 8192};
    problem::Problem problem = plan.problem;
    if (plan.is_of_set) problem.sizes = kLong;
    const Choice chosen = choose_among_attentions(set, problem, plan.device, Widening::refused);
    Plan instead{.problem = plan.problem, .device = plan.device, .numerics = plan.numerics};
    instead.is_of_set = plan.is_of_set;
    const KernelConfig& kernel = chosen.candidate->kernel;
    const bool merges = plan.is_of_set ? families::takes(kernel, SplitPolicy::chunks)
                                       : chosen.split.policy == SplitPolicy::chunks;
    add_steps(set, {kernel, chosen.candidate->source}, merges, instead);
    instead.split = plan.is_of_set ? planned_split(kernel, plan.device, work_of(plan.problem)) : chosen.split;
    return instead;
}

}  // namespace

Unsupported unserved(int sm, const std::vector<Refusal>& rejected) {
    return {fmt::format("no kernel for this attention on sm_{}", sm), rejected};
}

const Step* Plan::find(Role role) const {
    const auto found = std::ranges::find(steps, role, &Step::role);
    return found == steps.end() ? nullptr : &*found;
}

std::vector<KernelConfig> KernelSet::kernels() const {
    std::vector<KernelConfig> each;
    for (const Candidate& one : candidates)
        if (std::ranges::find(each, one.kernel) == each.end()) each.push_back(one.kernel);
    return each;
}

namespace {

// Whether there is a kernel for each role; `set` has what was found, and why not the others.
bool fill(KernelSet& set, const AttentionSpec& spec, int sm, const TuningTable& tuning) {
    const SmTraits& traits = families::traits_of(sm);
    const ops::OpTraits& op = ops::op_traits(spec.op);
    std::vector<Role> roles{op.main};
    std::ranges::copy_if(op.steps, std::back_inserter(roles), [&](Role role) { return role != op.main; });
    for (const Role role : roles) {
        if (role != op.main && !needs(set, role)) continue;
        const std::size_t before = set.candidates.size();
        for (const families::Family* family : families::all_families()) {
            if (family->role() != role) continue;
            // Bits follow from the instruction: one of them serves all sizes.
            if (spec.consistency == Consistency::bitwise && set.candidates.size() > before) {
                set.rejected.push_back({std::string(to_string(family->backend())),
                                        fmt::format("consistency \"bitwise\" has one instruction, {}'s here",
                                                    to_string(set.candidates[before].kernel.backend()))});
                continue;
            }
            std::ranges::move(family->candidates(spec, traits, tuning, set.rejected),
                              std::back_inserter(set.candidates));
        }
        if (set.candidates.size() == before) return false;
        if (role != op.main || !op.divides_keys) continue;
        leave_larger_tiles_to_one_family(spec, set);
        leave_decode_to_its_kernel(set.candidates);
        for (const Candidate& one : set.candidates) set.contenders.emplace_back(one.kernel, traits);
    }
    return true;
}

// The same request with one field at its default. By way of the C structs, where a 0 is each field's default:
// JSON would have to be destroyed while memory is short, which allocates. Throws InvalidRequest where the
// field cannot be left out.
AttentionSpec without(const problem::RequestField& left_out, const AttentionSpec& spec) {
    problem::CRequest c;
    for (const problem::RequestField& field : problem::request_fields())
        if (field.to_c != nullptr && &field != &left_out)
            field.to_c({.spec = spec, .sizes = {}, .sm = {}}, c);
    AttentionRequest request{};
    for (const problem::RequestField& field : problem::request_fields())
        if (field.from_c != nullptr) field.from_c(request, field.name, c);
    return problem::validate(request.spec, {}).spec;
}

// The fields that stand in the way: at its default, each of them leaves a request that a kernel serves.
std::vector<std::string_view> conflicting_fields(const AttentionSpec& spec, int sm,
                                                 const TuningTable& tuning) {
    std::vector<std::string_view> conflicting;
    for (const problem::RequestField& field : problem::request_fields()) {
        if (!problem::is_of_spec(field) || field.to_c == nullptr || !problem::counts(field.name, spec))
            continue;
        try {
            KernelSet set;
            if (fill(set, without(field, spec), sm, tuning)) conflicting.push_back(field.name);
        } catch (const Error&) {  // it cannot be left out
        }
    }
    return conflicting;
}

// One sentence that says what does not go together, before each family's own reason.
Unsupported unserved_fields(const AttentionSpec& spec, int sm, const TuningTable& tuning,
                            const std::vector<Refusal>& rejected) {
    const std::vector<std::string_view> fields = conflicting_fields(spec, sm, tuning);
    if (fields.empty()) return unserved(sm, rejected);
    const bool one = fields.size() == 1;
    return {fmt::format("{} {} not supported {} on sm_{}; leave {} at its default",
                        fmt::join(fields, " and "), one ? "is" : "are",
                        one ? "with the rest of this request" : "together", sm, one ? "it" : "one of them"),
            rejected};
}

}  // namespace

KernelSet kernel_set(const AttentionSpec& spec, int sm, const TuningTable& tuning) {
    KernelSet set;
    if (!fill(set, spec, sm, tuning)) throw unserved_fields(spec, sm, tuning, set.rejected);
    return set;
}

Choice choose(const KernelSet& set, const problem::Problem& problem, const DeviceTraits& device) {
    const ops::OpTraits& op = ops::op_traits(problem.spec.op);
    if (!op.divides_keys) return {.candidate = find_role(set, op.main)};
    return choose_among_attentions(set, problem, device, Widening::allowed);
}

Plan make_plan(const problem::Problem& problem, const DeviceTraits& device, const TuningTable& tuning) {
    const KernelSet set = kernel_set(problem.spec, device.sm, tuning);
    Plan plan = plan_of(problem, device, set);
    const Choice chosen = choose(set, problem, device);
    if (ops::op_traits(problem.spec.op).divides_keys) explain_attention(set, chosen, plan);
    if (chosen.candidate == nullptr) throw unserved(device.sm, plan.rejected);
    plan.split = chosen.split;
    add_steps(set, {chosen.candidate->kernel, chosen.candidate->source},
              plan.split.policy == SplitPolicy::chunks, plan);
    if (reads_widened(chosen.candidate->kernel)) plan.instead.push_back(without_widening(set, plan));
    return plan;
}

SetOfPlans plan_set(const AttentionSpec& spec, const DeviceTraits& device, const TuningTable& tuning) {
    SetOfPlans made{.set = kernel_set(spec, device.sm, tuning), .plans = {}, .plan_of = {}};
    const ops::OpTraits& op = ops::op_traits(spec.op);
    const Role role = op.main;
    for (const Candidate& one : made.set.candidates) {
        const auto known = std::ranges::find_if(
            made.plans, [&](const Plan& plan) { return plan.kernel(role) == one.kernel; });
        made.plan_of.push_back(static_cast<std::size_t>(known - made.plans.begin()));
        if (known != made.plans.end() || one.kernel.family->role() != role) continue;
        Plan& plan = made.plans.emplace_back(plan_of({spec, {}}, device, made.set));
        plan.is_of_set = true;
        add_steps(made.set, {one.kernel, one.source}, families::takes(one.kernel, SplitPolicy::chunks), plan);
        if (op.divides_keys) plan.split = planned_split(one.kernel, device, work_of(plan.problem));
        if (reads_widened(one.kernel)) plan.instead.push_back(without_widening(made.set, plan));
    }
    return made;
}

Plan with_attention(Plan plan, const KernelConfig& attention, const Split& split, const TuningTable& tuning) {
    const auto takes = [&](SplitPolicy policy) { return families::takes(attention, policy); };
    plan.split = takes(split.policy) ? split
                 : takes(SplitPolicy::shares)
                     ? shares_of(Contender(attention, plan.device), plan.device.sm_count)
                     : Split{};
    const KernelSet set = kernel_set(plan.problem.spec, plan.device.sm, tuning);
    plan.steps.clear();
    plan.instead.clear();
    add_steps(set, {attention}, plan.split.policy == SplitPolicy::chunks, plan);
    if (reads_widened(attention)) plan.instead.push_back(without_widening(set, plan));
    return plan;
}

}  // namespace attnsmith::planner
