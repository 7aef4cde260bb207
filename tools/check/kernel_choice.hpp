// Kernels by name of their tiles, so that a test can run each one that planning could ever choose and not
// only the one that it would choose here.
#pragma once

#include <stdexcept>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "check/case.hpp"

namespace attnsmith::check {

// The case is right, but not for this machine: it counts as skipped, with this reason.
struct NotHere : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// The attention kernels of planner::kernel_set() with the repository's tuning on every SM that the planner
// knows, each once. Not split.
std::vector<KernelChoice> kernel_choices(const AttentionSpec& spec);

// The shortest chunk of at least so many keys: a chunk is whole tiles of the kernel's. 0 stays 0.
std::int64_t chunk_of(const KernelChoice& choice, std::int64_t keys);

// The kernel that the case asks for, compiled for the current device whichever SM would choose it, else what
// Runtime::prepare() gives. Throws NotHere where the device has too little shared memory for it, or lacks its
// instructions.
Kernel prepare_case(Runtime& runtime, const Case& test);

}  // namespace attnsmith::check
