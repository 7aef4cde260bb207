// A Runtime over the stub driver of tests/support/fake_cuda, and tensors that no one will look into.
#pragma once

#include <dlfcn.h>

#include "attnsmith/runtime.hpp"
#include "support/catch.hpp"
#include "support/fake_cuda/fake_cuda.h"

namespace attnsmith::test {

inline fake_cuda_state& fake() {
    static void* const handle = dlopen(ATTNSMITH_FAKE_CUDA, RTLD_NOW);
    REQUIRE(handle != nullptr);
    return *reinterpret_cast<fake_cuda_state* (*)()>(dlsym(handle, "fake_cuda_get_state"))();
}

inline RuntimeOptions fake_options() {
    RuntimeOptions options;
    options.use_cache = false;
    options.log_level = LogLevel::off;
    options.driver_path = ATTNSMITH_FAKE_CUDA;
    return options;
}

// Places are 16 MiB apart.
inline Tensor at(int place, DType dtype, std::initializer_list<std::int64_t> shape) {
    return Tensor::contiguous(
        reinterpret_cast<void*>(std::uintptr_t{0x1000000} * static_cast<unsigned>(place)), dtype, shape);
}

}  // namespace attnsmith::test
