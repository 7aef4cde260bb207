#include "planner/plan_json.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "abi/attention_cuts.h"
#include "families/widening.hpp"
#include "planner/launch.hpp"
#include "problem/json_text.hpp"
#include "problem/request/request_json.hpp"

namespace attnsmith::planner {
namespace {

using Json = nlohmann::ordered_json;

Json resources_json(const KernelConfig& kernel, const CacheState& cache) {
    Json resources;
    resources["predicted"] = {{"registers_per_thread", kernel.registers_ceiling()},
                              {"shared_bytes", kernel.shared_bytes},
                              {"ctas_per_sm", kernel.ctas_per_sm}};
    if (cache.compiled) {
        resources["compiled"] = {{"registers_per_thread", cache.compiled->registers_per_thread},
                                 {"spill_bytes", cache.compiled->spill_bytes},
                                 {"shared_bytes", cache.compiled->shared_bytes},
                                 {"cubin_bytes", cache.compiled->cubin_bytes},
                                 {"compile_ms", cache.compiled->compile_ms}};
    }
    return resources;
}

Json step_json(const Step& step, const families::Extent& extent, const CacheState& cache) {
    const KernelConfig& kernel = step.kernel;
    const families::Family& family = *kernel.family;
    Json json;
    json["role"] = to_string(family.role());
    json["name"] = kernel.name();
    json["template"] = family.name();
    json["backend"] = to_string(family.backend());
    json["target"] = kernel.target;
    json["tile_q"] = kernel.tile_q();
    if (kernel.tile_kv() > 0) {
        json["tile_kv"] = kernel.tile_kv();
        json["stages"] = kernel.stages();
    }
    json["warps"] = kernel.threads / 32;
    if (const auto* const attention = family.attention();
        attention != nullptr && attention->producer_warps(kernel) > 0)
        json["producer_warps"] = attention->producer_warps(kernel);
    if (kernel.constants.integer("gather") != 0) json["gather"] = true;
    json["grid"] = fmt::format("{} CTAs of {} threads", extent.ctas, kernel.threads);
    json["grid_ctas"] = extent.ctas;
    json["threads_per_cta"] = kernel.threads;
    json["resources"] = resources_json(kernel, cache);
    json["cache"] = {{"key", cache.key}, {"state", cache.hit ? "hit" : "miss"}};
    if (cache.hit) json["cache"]["toolchain"] = cache.toolchain;
    if (step.role() == Role::attention) json["tuning"] = to_string(step.tile_source);
    if (extent.kv_head_shares > 1) json["kv_head_shares"] = extent.kv_head_shares;
    return json;
}

// Where a row's keys are cut, which no size has a part in.
Json cuts_json(const families::KernelConfig& kernel) {
    return {{"least_keys", abi::kLeastCut},
            {"most_pieces", abi::kMostCuts},
            {"softmax_keys", families::attention_of(kernel).softmax_keys(kernel)}};
}

Json split_json(const Plan& plan, const Launch& launch) {
    const Split& planned = plan.split;
    Json json = {{"policy", to_string(planned.policy)}};
    if (plan.problem.spec.consistency == Consistency::bitwise) {
        json["policy"] = "absolute";
        json["cuts"] = cuts_json(plan.kernel(Role::attention));
    }
    if (plan.is_of_set) json["of_bounds"] = true;
    const bool divides = planned.policy != SplitPolicy::none;
    if (divides) {
        const bool chunks = planned.policy == SplitPolicy::chunks;
        json[chunks ? "chunk" : "least_keys"] = planned.keys;
        json[chunks ? "splits" : "shares"] = launch.split.parts;
    }
    if (divides || plan.find(Role::widen) != nullptr) json["workspace_bytes"] = launch.workspace.bytes();
    return json;
}

Json refusals_json(const std::vector<Refusal>& refusals) {
    Json json = Json::array();
    for (const Refusal& refusal : refusals)
        json.push_back({{"candidate", refusal.candidate}, {"reason", refusal.reason}});
    return json;
}

// The launch that the planned sizes would have, as a dense batch.
Launch planned_launch(const Plan& plan) {
    const PlanSizes& sizes = plan.problem.sizes;
    return launch_of(plan, {.batch = sizes.batch,
                            .q_tokens = sizes.batch * sizes.q_len,
                            .max_q_len = sizes.q_len,
                            .max_kv_len = sizes.kv_len});
}

}  // namespace

Json to_json(const Plan& plan, std::span<const CacheState> states) {
    const Launch launch = planned_launch(plan);
    Json json;
    json["schema"] = "attnsmith.plan/1";
    json["request"] = problem::to_json(plan.problem);
    json["device"] = {{"sm", std::to_string(plan.device.sm)},
                      {"name", plan.device.name},
                      {"sm_count", plan.device.sm_count},
                      {"shared_bytes_per_block", plan.device.shared_bytes_per_block}};
    json["kernels"] = Json::array();
    for (std::size_t i = 0; i < plan.steps.size(); ++i)
        json["kernels"].push_back(step_json(plan.steps[i], launch.extents[i], states[i]));
    json["split_kv"] = split_json(plan, launch);
    for (const Plan& instead : plan.instead) {
        Json names = Json::array();
        for (const Step& step : instead.steps) names.push_back(step.kernel.name());
        json["instead"] = {{"above_widened_bytes", families::kMostWidenedBytes}, {"kernels", names}};
    }
    json["numerics"] = {{"accumulate", "fp32"},
                        {"atol", plan.numerics.atol},
                        {"rtol", plan.numerics.rtol},
                        {"consistency", to_string(plan.problem.spec.consistency)},
                        {"precision", to_string(plan.problem.spec.precision)}};
    json["rejected"] = refusals_json(plan.rejected);
    json["unused"] = refusals_json(plan.unused);
    return json;
}

std::string json_text(const Plan& plan, std::span<const CacheState> states) {
    return problem::indented(to_json(plan, states));
}

}  // namespace attnsmith::planner
