// The arguments of the kernel that widens keys and values of 8 bits into the workspace, before an attention
// that reads them there.
#pragma once

#include "abi/attention_arguments.h"

namespace attnsmith::abi {

inline constexpr int64 kWidenedBytes = 2;  // of an element

// Shared memory for where a key lies.
inline constexpr int32 kWidenedPlaceBytes = 16;

struct WidenArguments {
    AttentionArguments attention;
    // fp16, [batch, max_kv_len, kv_heads, head_dim]: a sequence's keys from 0 on, however they are stored.
    void* k;
    void* v;
    int32 blocks;  // of tile_q keys, of each sequence and KV head: what a CTA widens
};

}  // namespace attnsmith::abi
