// Host time of Call::launch beside that of the driver call in it.
#pragma once

#include <string>

#include "attnsmith/runtime.hpp"

namespace attnsmith::bench {

// Host time of one launch, in microseconds: medians over rounds that take turns.
struct LaunchTiming {
    std::string name;
    double call_us = 0;         // Call::launch
    double bare_us = 0;         // cuLaunchKernelEx of the same function, configuration and parameter
    double bare_kernel_us = 0;  // the same with a CUkernel instead of its CUfunction
    double difference_us = 0;   // median over rounds of call - bare
    double addressed_us = 0;    // Call::launch with other addresses
    double addressed_difference_us = 0;
};

// `attention` is paged, without sinks, ALiBi and LSE, and of a size that takes one kernel. REQUIRES: a
// current context.
LaunchTiming measure_launch(Runtime& runtime, const ModelAttention& attention);

}  // namespace attnsmith::bench
