// Attention on Hopper's asynchronous tensor cores, sm_90a: the warpgroups of a persistent CTA
// (attention/persistent/kernel.cuh) that multiply. Prefill and decode, contiguous or paged KV.
//
//     a consumer, with 64 packed query rows of its own (attention/wgmma/consumer.cuh):
//       S = Q K(n)^T │ softmax │ S = Q K(n-1)^T │ softmax of n-1  │ S = Q K(n-2)^T │ ... │ O / l
//                              │ O += P V(n) ...... in its shade  │ O += P V(n-1)  │
//     three for the same rows (attention/wgmma/wide_consumers.cuh): weights, and half of O's columns each
//
//   Keys are taken from the last block to the first, so that a causal tile's masked blocks come first. While
//   one consumer is at its softmax the other has the tensor cores. P stays in registers, and so does Q where
//   there is room; O goes to global memory from registers.
//   Rows of V that no row of the tile sees are cleared where a block holds such rows: P is zero there, but
//   zero times what is in memory need not be.
#pragma once

#include "attention/persistent/kernel.cuh"
#include "attention/wgmma/consumer.cuh"
#include "attention/wgmma/wide_consumers.cuh"

namespace attnsmith {

// `warpgroup`: of those that multiply.
template <class Config>
__device__ void multiply(const abi::PersistentArguments& args, const PersistentPipeline<Config>& pipeline,
                         int32 warpgroup) {
    if constexpr (!abi::is_wide(Config::shape)) {
        set_registers_up<Config::consumer_registers>();
        WgmmaConsumer<Config>{args, pipeline, warpgroup}.run();
    } else if (warpgroup < 2) {
        set_registers_up<Config::consumer_registers>();
        WgmmaWideValues<Config>{args, pipeline, warpgroup == 1}.run();
    } else {
        set_registers_down<Config::score_registers>();
        WgmmaWideScores<Config>{args, pipeline}.run();
    }
}

template <class Config>
__device__ void attention_wgmma(const abi::PersistentArguments& args) {
    persistent_kernel<Config>(args, [&](const PersistentPipeline<Config>& pipeline, int32 warpgroup) {
        multiply<Config>(args, pipeline, warpgroup);
    });
}

}  // namespace attnsmith
