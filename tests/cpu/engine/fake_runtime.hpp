// A Runtime over the stub driver of tests/support/fake_cuda, and tensors that no one will look into.
#pragma once

#include <dlfcn.h>

#include <cstring>

#include "attnsmith/runtime.hpp"
#include "support/catch.hpp"
#include "support/fake_cuda/fake_cuda.h"

namespace attnsmith::test {

template <typename Function>
Function* fake_function(const char* name) {
    static void* const handle = dlopen(ATTNSMITH_FAKE_CUDA, RTLD_NOW);
    REQUIRE(handle != nullptr);
    return reinterpret_cast<Function*>(dlsym(handle, name));
}

inline fake_cuda_state& fake() { return *fake_function<fake_cuda_state*()>("fake_cuda_get_state")(); }

// The launch that made fake().launches `number`.
inline const fake_cuda_launch& launch_of(int number) {
    const fake_cuda_launch* const launch =
        fake_function<const fake_cuda_launch*(int)>("fake_cuda_get_launch")(number);
    REQUIRE(launch != nullptr);
    return *launch;
}

// What the kernel was launched with, which by its cubin takes such a struct.
template <typename Arguments>
Arguments arguments_of(const fake_cuda_launch& launch) {
    REQUIRE(launch.parameter_bytes == sizeof(Arguments));
    Arguments arguments;
    std::memcpy(static_cast<void*>(&arguments), launch.parameter, sizeof arguments);
    return arguments;
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
