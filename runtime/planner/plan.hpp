// Planning: which kernels serve a problem on a device, with what tiles and what KV split, and why not the
// others. Pure functions: no GPU, no files, no clock. The same inputs give the same bytes of JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attnsmith/error.hpp"
#include "families/family.hpp"
#include "planner/contender.hpp"
#include "problem/request/problem.hpp"
#include "problem/tensors/bound_shape.hpp"

namespace attnsmith::planner {

using families::TileSource;
using families::TuningTable;
using problem::Role;

struct Numerics {
    double atol = 0;
    double rtol = 0;
    bool operator==(const Numerics&) const = default;
};

// A kernel of the plan; its family says which role it has.
struct Step {
    KernelConfig kernel{};
    TileSource tile_source = TileSource::model;

    Role role() const { return kernel.family->role(); }
    bool operator==(const Step&) const = default;
};

struct Plan {
    problem::Problem problem{};
    DeviceTraits device{};
    std::vector<Step> steps{};  // in the order of their launches; a launch may leave some out
    Split split{};              // at the planned sizes
    // The kernels are a set's, for any sizes: each launch is divided as planning would for its bounds, and
    // the sizes and the split above are those of one query and one key.
    bool is_of_set = false;
    Numerics numerics{};
    std::vector<Refusal> rejected{};
    std::vector<Refusal> unused{};  // kernels of the set that serve other sizes, or take longer at these
    // A plan that widens keys has one more, for bounds whose widened keys would take more workspace than
    // families::kMostWidenedBytes.
    std::vector<Plan> instead{};

    // Null where the plan has no such step.
    const Step* find(Role role) const;
    // REQUIRES: the plan has it.
    const KernelConfig& kernel(Role role) const { return find(role)->kernel; }
    bool operator==(const Plan&) const = default;
};

struct KernelSet {
    std::vector<families::Candidate> candidates{};  // by role; a kernel may stand for several ranges of rows
    std::vector<Contender> contenders{};            // the attentions of the candidates, which come first
    std::vector<Refusal> rejected{};

    std::vector<KernelConfig> kernels() const;  // each once
};

// Every kernel that a plan for this spec can name on this compute capability with this table, whatever the
// sizes and the SM count. Throws Unsupported with each candidate's reason when no kernel serves the spec. The
// spec is a validated one's.
KernelSet kernel_set(const AttentionSpec& spec, int sm, const TuningTable& tuning);

// That no kernel serves a spec, and why not each.
Unsupported unserved(int sm, const std::vector<Refusal>& rejected);

// What planning chooses of a set for given sizes.
struct Choice {
    const families::Candidate* candidate = nullptr;  // of the set; null where it has none for these sizes
    Split split{};
    double clocks = 0;  // estimated, of what ranks by it
};

// The one place where kernels are chosen. Allocates nothing. `set` is that of the problem's spec on the
// device's SM.
Choice choose(const KernelSet& set, const problem::Problem& problem, const DeviceTraits& device);

// A plan for each kernel of a set that choose() can give, for launches of any sizes.
struct SetOfPlans {
    KernelSet set;
    std::vector<Plan> plans;
    std::vector<std::size_t> plan_of;  // of each of the set's candidates
};

// Throws Unsupported. The spec is a validated one's.
SetOfPlans plan_set(const AttentionSpec& spec, const DeviceTraits& device, const TuningTable& tuning);

// Throws Unsupported.
Plan make_plan(const problem::Problem& problem, const DeviceTraits& device, const TuningTable& tuning);

// The same plan with another attention kernel and another split, whoever chose them: for measuring, and for
// tests that run what planning would not choose here. A kernel that does not take the split gets shares.
// REQUIRES: op attention or mla.
Plan with_attention(Plan plan, const KernelConfig& attention, const Split& split, const TuningTable& tuning);

}  // namespace attnsmith::planner
