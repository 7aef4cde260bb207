// Attention on Hopper's asynchronous tensor cores, sm_90a: prefill, contiguous or paged KV.
//
//   A persistent CTA: a producer warpgroup whose warps bring work and data, and Config::consumers warpgroups
//   of 64 packed query rows each, which multiply. attention/persistent/pipeline.cuh has barriers, registers
//   and a timeline.
//
//     scheduler   draws tiles of query rows, the next when the last keys of one are on their way
//                   ──mbarrier──> everybody else
//     loaders     Q: once a tile │ K(n) ─ K(n-1) ─ ... ─ K(0) │ V(n) ─ V(n-1) ─ ... ─ V(0), a warp each
//                   global ──TMA──> shared: Q, a ring of K and a ring of V, `stages` tiles each
//     consumer    S = Q K(n)^T │ softmax │ S = Q K(n-1)^T │ softmax of n-1  │ S = Q K(n-2)^T │ ... │ O / l
//                                        │ O += P V(n) ...... in its shade  │ O += P V(n-1)  │
//
//   Keys are taken from the last block to the first, so that a causal tile's masked blocks come first. While
//   one consumer is at its softmax the other has the tensor cores. P stays in registers, and so does Q where
//   there is room; O goes to global memory from registers.
//   Rows of V that no row of the tile sees are cleared where a block holds such rows: P is zero there, but
//   zero times what is in memory need not be.
//   Where keys have 8 bits, another warpgroup stands between loaders and consumers and widens each tile
//   (attention/persistent/dequantizer.cuh).
#pragma once

#include "attention/persistent/dequantizer.cuh"
#include "attention/persistent/loaders.cuh"
#include "attention/persistent/scheduler.cuh"
#include "attention/persistent/share_scheduler.cuh"
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

// Grid: any number of CTAs; they take all tiles of all KV heads and splits among them, or a share of keys
// each.
template <class Config>
__device__ void attention_wgmma(const abi::PersistentArguments& args) {
    extern __shared__ __align__(1024) char memory[];
    const PersistentPipeline<Config> pipeline{memory, SharedAddress::of(memory)};
    if (threadIdx.x == 0) {
        pipeline.init();
        prefetch_map(args.q);
        if constexpr (!Config::gather) {
            if (!Config::latent || args.attention.k) prefetch_map(args.k);
            prefetch_map(args.v);
        }
    }
    if constexpr (Config::shares) ShareScheduler<Config>::begin(args, pipeline);
    __syncthreads();
    const int32 warp = uniform(threadIdx.x / 32);
    constexpr int32 kProducers = abi::producer_warps(Config::shape);
    if (warp < abi::kLoaderWarps) {
        set_registers_down<Config::producer_registers>();
        if (warp == 0) {
            if constexpr (Config::shares)
                ShareScheduler<Config>{args, pipeline}.run();
            else
                TileScheduler<Config>{args, pipeline}.run();
        }
        if (warp == 1) QueryLoader<Config>{args, pipeline}.run();
        if (warp == 2) KeyLoader<Config, false>{args, pipeline}.run();
        if (warp == 3) KeyLoader<Config, true>{args, pipeline}.run();
    } else if (warp < kProducers) {
        if constexpr (is_same<StageOf<Config>, DequantRing>) {
            set_registers_down<abi::dequant_registers(Config::shape)>();
            constexpr int32 kWarps = abi::kDequantWarps;
            const int32 widener = warp - abi::kLoaderWarps;
            if (widener < kWarps)
                KeyDequantizer<Config, false>{pipeline, widener}.run();
            else
                KeyDequantizer<Config, true>{pipeline, widener - kWarps}.run();
        }
    } else {
        multiply<Config>(args, pipeline, (warp - kProducers) / 4);
    }
}

}  // namespace attnsmith
