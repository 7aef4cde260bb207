// How fast a planned attention runs: GPU time over rotated inputs, beside the device's copy bandwidth.
#pragma once

#include <string>
#include <vector>

#include "attnsmith/runtime.hpp"

namespace attnsmith::bench {

struct AttentionSpeed {
    std::string kernels;  // Call::describe()
    double median_ms = 0, least_ms = 0;
    int launches = 0;
    double flops = 0, bytes = 0;  // attention_flops(), attention_bytes()
};

// Every sequence has exactly the planned lengths. Inputs are rotated so that no launch finds its own in L2.
// Throws what the library throws.
AttentionSpeed measure_attention(Runtime& runtime, const AttentionRequest& request, double seconds);

// Bytes read and written a second, of a large device-to-device copy.
double measure_copy_bandwidth(Runtime& runtime);

}  // namespace attnsmith::bench
