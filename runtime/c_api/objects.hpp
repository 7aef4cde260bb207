// What the opaque types of the C ABI hold. None of these is ever empty.
#pragma once

#include <future>
#include <memory>
#include <vector>

#include "attnsmith/attnsmith.h"
#include "attnsmith/runtime.hpp"

struct attnsmith_runtime {
    attnsmith::Runtime runtime;
};

struct attnsmith_kernel {
    attnsmith::Kernel kernel;
};

struct attnsmith_pending {
    std::shared_future<attnsmith::Kernel> kernel;
};

struct attnsmith_call {
    attnsmith::Call call;
};

struct attnsmith_kernel_set {
    attnsmith::KernelSet set;
    std::vector<attnsmith_kernel> kernels;  // as the set's kernels() has them
};

struct attnsmith_kept {
    std::shared_ptr<const void> call;
};

struct attnsmith_buffer {
    attnsmith::Buffer buffer;
};
