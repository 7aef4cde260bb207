// Where the keys of paged KV are.
#pragma once

#include "abi/attention_arguments.h"

namespace attnsmith {

// A key's page, counted in its sequence: key / page_size. A division would take longer than all else that a
// look-up does.
__device__ inline uint32 page_of(const abi::AttentionArguments& args, uint32 key) {
    return __umulhi(key * 2, args.page_magic) >> args.page_shift;
}

}  // namespace attnsmith
