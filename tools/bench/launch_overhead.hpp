// Host time of Call::launch beside that of the driver call in it.
#pragma once

#include "attnsmith/runtime.hpp"
#include "bench/device_timings.hpp"

namespace attnsmith::bench {

// `attention` is paged, without sinks, ALiBi and LSE, and of a size that takes one kernel. REQUIRES: a
// current context.
LaunchTiming measure_launch(Runtime& runtime, const ModelAttention& attention);

}  // namespace attnsmith::bench
