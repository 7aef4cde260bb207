// From checked tensors to the arguments of the kernels.
#pragma once

#include "abi/attention_arguments.h"
#include "abi/merge_arguments.h"
#include "attnsmith/batch.hpp"
#include "planner/plan.hpp"
#include "problem/tensors.hpp"

namespace attnsmith::engine {

// Arguments of the attention kernel. Those of the merge differ in `tiles` alone.
abi::AttentionArguments make_arguments(const problem::Problem& problem, const AttentionTensors& tensors,
                                       const Batch& batch, const problem::BoundShape& shape,
                                       const planner::Launch& launch, void* workspace);

// Arguments of the kernel of op merge.
abi::MergeArguments make_arguments(const problem::Problem& problem, const MergeTensors& tensors,
                                   const planner::Launch& launch);

}  // namespace attnsmith::engine
