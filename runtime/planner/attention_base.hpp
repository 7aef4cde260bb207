// What the attention families have in common.
#pragma once

#include <optional>
#include <string>

#include "planner/device_traits.hpp"
#include "planner/kernel_config.hpp"
#include "problem/problem.hpp"

namespace attnsmith::planner {

// Why no kernel that multiplies on tensor cores serves the spec.
std::optional<std::string> tensor_core_refusal(const AttentionSpec& spec);

// A config with what the spec and the SM decide: all but the family, the target and the tiles.
KernelConfig attention_base(const AttentionSpec& spec, const DeviceTraits& device);

}  // namespace attnsmith::planner
