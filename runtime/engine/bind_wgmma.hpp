// The wgmma kernel's arguments: the attention's, and the tensors as the copy engine reads them.
#pragma once

#include "abi/attention_wgmma.h"
#include "attnsmith/spec.hpp"
#include "driver/api.hpp"
#include "planner/plan.hpp"

namespace attnsmith::engine {

// `attention` is what make_arguments() gives for the same spec and launch. Throws InvalidRequest for strides
// that no map has, DriverError.
void make_wgmma_arguments(const driver::Api& api, int device, const AttentionSpec& spec,
                          const planner::KernelConfig& kernel, const planner::Launch& launch,
                          const abi::AttentionArguments& attention, abi::WgmmaArguments& arguments);

}  // namespace attnsmith::engine
