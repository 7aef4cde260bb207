// A plan as JSON, schema attnsmith.plan/1 (runtime/schemas/plan.schema.json).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "planner/plan.hpp"

namespace attnsmith::planner {

// What the compiler said of a kernel that is in the cache.
struct CompiledResources {
    int registers_per_thread = 0;
    int spill_bytes = 0;
    std::int64_t shared_bytes = 0;  // dynamic, as the cubin exports it
    std::int64_t cubin_bytes = 0;
    double compile_ms = 0;
};

struct CacheState {
    std::string key{};
    bool hit = false;
    std::string toolchain{};  // of the entry; empty on a miss
    std::optional<CompiledResources> compiled{};
};

// `states` are of the plan's steps.
nlohmann::ordered_json to_json(const Plan& plan, std::span<const CacheState> states);
std::string json_text(const Plan& plan, std::span<const CacheState> states);

}  // namespace attnsmith::planner
