#include "planner/plan_json.hpp"

#include <fmt/format.h>

#include "problem/request_json.hpp"

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

Json kernel_json(const char* role, const KernelConfig& kernel, const CacheState& cache, std::int64_t ctas) {
    Json json;
    json["role"] = role;
    json["name"] = kernel.name();
    json["template"] = to_string(kernel.family);
    json["backend"] = to_string(kernel.backend);
    json["target"] = kernel.target;
    json["tile_q"] = kernel.tile_q;
    if (kernel.tile_kv > 0) {
        json["tile_kv"] = kernel.tile_kv;
        json["stages"] = kernel.stages;
    }
    json["warps"] = kernel.threads() / 32;
    if (kernel.producer_warps > 0) json["producer_warps"] = kernel.producer_warps;
    if (kernel.gather) json["gather"] = true;
    json["grid"] = fmt::format("{} CTAs of {} threads", ctas, kernel.threads());
    json["resources"] = resources_json(kernel, cache);
    json["cache"] = {{"key", cache.key}, {"state", cache.hit ? "hit" : "miss"}};
    if (cache.hit) json["cache"]["toolchain"] = cache.toolchain;
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

Json to_json(const Plan& plan, const CacheState& attention, const CacheState& merge) {
    const Launch launch = planned_launch(plan);
    Json json;
    json["schema"] = "attnsmith.plan/1";
    json["request"] = problem::to_json(plan.problem);
    json["device"] = {{"sm", std::to_string(plan.device.sm)},
                      {"name", plan.device.name},
                      {"sm_count", plan.device.sm_count},
                      {"shared_bytes_per_block", plan.device.shared_bytes_per_block}};
    const bool split = plan.split.chunk > 0;
    json["kernels"] = Json::array();
    if (plan.attention) {
        json["kernels"].push_back(kernel_json("attention", *plan.attention, attention, launch.grid));
        json["kernels"].back()["tuning"] = to_string(plan.tile_source);
        if (launch.kv_head_shares > 1) json["kernels"].back()["kv_head_shares"] = launch.kv_head_shares;
    }
    if (split || !plan.attention)
        json["kernels"].push_back(kernel_json("merge", plan.merge, merge, launch.merge_grid));
    json["split_kv"] = {{"policy", split ? "chunks" : "none"}};
    if (split) {
        json["split_kv"]["chunk"] = plan.split.chunk;
        json["split_kv"]["splits"] = launch.splits;
        json["split_kv"]["workspace_bytes"] = launch.workspace_bytes;
    }
    json["numerics"] = {{"accumulate", "f32"},
                        {"atol", plan.numerics.atol},
                        {"rtol", plan.numerics.rtol},
                        {"consistency", to_string(plan.problem.spec.consistency)},
                        {"precision", to_string(plan.problem.spec.precision)}};
    json["rejected"] = Json::array();
    for (const Refusal& refusal : plan.rejected) {
        json["rejected"].push_back({{"candidate", refusal.candidate}, {"reason", refusal.reason}});
    }
    return json;
}

}  // namespace attnsmith::planner
