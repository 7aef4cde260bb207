// What building kernels at run time costs: compiling them, finding them on disk, looking them up, launching
// them.
#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "bench/device_timings.hpp"

namespace attnsmith::bench {

struct JitOptions {
    std::vector<ModelAttention> attentions;
    int sm = 0;  // to compile for; 0: the GPU that is present, else 90
    int repeat = 3;
    std::stop_token stop;  // checked between measurements
    std::function<void(int done, int total, const std::string& what)> progress;
};

// A cold compile: no cache of ours, none of NVRTC's.
struct CompileTiming {
    std::string name, target;
    std::vector<double> ms;
};

struct CompileTimings {
    int sm = 0;
    std::string nvrtc_path, toolchain;
    double open_ms = 0;  // of NVRTC: dlopen, and the first compile of an empty program
    std::vector<CompileTiming> kernels;
};

struct JitReport {
    DeviceTimings device;
    CompileTimings compile;
    bool stopped = false;
};

// REQUIRES: no other thread of the process may hold a lock, and it has touched neither the driver nor NVRTC:
// parts of this run in forked children, so that the process which measures never loads NVRTC before it must.
// Throws what the library throws, and Error where a child fails.
JitReport measure_jit(const JitOptions& options);

}  // namespace attnsmith::bench
