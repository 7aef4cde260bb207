// The launch: no allocation, no string, no lock, and one driver call (into a default stream also the question
// whose context is current), so that a resolved handle costs what a bare cuLaunchKernelEx does.
//
// Which handle: KernelFunction::handle() (a CUkernel) is right in every context of its device, since the
// driver picks the stream's context, or the current one for the default stream. A CUfunction
// (KernelFunction::materialise()) is bound to one context and gives CUDA_ERROR_INVALID_HANDLE, or worse, in
// another. Both are accepted here; engines take the first.
#pragma once

#include <cstdint>

#include "driver/api.hpp"

namespace attnsmith::driver {

struct Dim3 {
    std::uint32_t x = 1, y = 1, z = 1;
    bool operator==(const Dim3&) const = default;
};

struct LaunchConfig {
    Dim3 grid;
    Dim3 block;
    std::uint32_t shared_bytes = 0;  // dynamic
    int device = 0;                  // the kernel's: default streams are taken to be this device's
    bool operator==(const LaunchConfig&) const = default;
};

// `params` points to the kernel's one parameter, a struct taken by value; it is copied before this returns.
// REQUIRES: no dimension of the grid or block is 0 (there is nothing to launch then: leave the call out).
// Throws DriverError; allocates only then.
void launch(const Api& api, FunctionHandle function, const LaunchConfig& config, const void* params,
            StreamHandle stream);

}  // namespace attnsmith::driver
