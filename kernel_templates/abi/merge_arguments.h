// The arguments of the kernel that merges attention states: one struct, passed by value. Strides are in
// elements.
#pragma once

#include "abi/integers.h"

namespace attnsmith::abi {

inline constexpr int32 kMaxMergeStates = 32;

struct MergeState {
    const void* o;     // [token][head][head_dim_vo], the last stride 1
    const float* lse;  // [token][head], natural log
    int64 o_token_stride, o_head_stride;
    int64 lse_token_stride, lse_head_stride;
};

struct MergeArguments {
    MergeState state[kMaxMergeStates];
    void* o;     // may be the very view that a state's is
    float* lse;  // likewise; null: not written
    int64 o_token_stride, o_head_stride;
    int64 lse_token_stride, lse_head_stride;
    int64 rows;  // tokens * heads; row = token * heads + head
    int32 heads;
    int32 states;  // in use, at least 1
};

// A kernel's parameters, whatever the toolchain and the driver.
static_assert(sizeof(MergeArguments) <= 4096);

}  // namespace attnsmith::abi
