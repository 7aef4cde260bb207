// Boxes of a tensor to shared memory by the copy engine (TMA). PTX: cp.async.bulk.tensor.
#pragma once

#include "abi/tensor_map.h"
#include "common/barrier.cuh"

namespace attnsmith {

__device__ inline void prefetch_map(const abi::TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ inline void tma_load(SharedAddress target, const abi::TensorMap& map, Barrier barrier, int32 c0,
                                int32 c1, int32 c2, int32 c3) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(target.value),
        "l"(&map), "r"(barrier.address.value), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
        : "memory");
}

}  // namespace attnsmith
