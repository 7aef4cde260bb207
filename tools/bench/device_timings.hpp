// What a kernel that is on disk costs until it runs: loading it, looking it up, launching it. Needs a GPU.
#pragma once

#include <cstddef>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "bench/launch_overhead.hpp"

namespace attnsmith::bench {

// From a problem whose kernels are on disk to a handle that can be launched, by a Runtime that has just been
// made and knows nothing but the driver.
struct HandleTiming {
    std::string name;
    std::size_t kernels = 1;  // that were loaded: 2 where the plan has a merge
    std::vector<double> ms;
};

struct DeviceTimings {
    std::string skipped;  // why there are none; empty where there are
    std::string device, driver;
    int sm = 0;
    std::vector<HandleTiming> handles;
    bool nvrtc_loaded = false;  // when all of the above had been measured; by /proc/self/maps
    double lookup_us = 0;       // of Runtime::prepare for a problem that it knows
    LaunchTiming launch;
};

struct DeviceTimingOptions {
    std::vector<ModelAttention> attentions;
    std::string cache_dir;  // has all their kernels, and those of launch_attention()
    int repeat = 10;
    std::stop_token stop;
};

// The attention whose launch is timed: one sequence, one query, few keys, so that the GPU keeps up with the
// host.
ModelAttention launch_attention();

// Measures the first device. REQUIRES: the process has not loaded NVRTC. Throws what the library throws.
DeviceTimings measure_device(const DeviceTimingOptions& options);

}  // namespace attnsmith::bench
