// A persistent CTA: warps that find work and bring data, and warpgroups that multiply, which a family
// provides. attention/persistent/pipeline.cuh has barriers, registers and a timeline.
//
//     scheduler   draws tiles of query rows, the next when the last keys of one are on their way; or goes
//                 through its share of them
//                   ──mbarrier──> all others
//     loaders     Q: once a tile │ K(n) ─ K(n-1) ─ ... ─ K(0) │ V(n) ─ V(n-1) ─ ... ─ V(0), a warp each
//                   global ──TMA──> shared: Q, a ring of K and a ring of V, `stages` tiles each
//     dequantizers   with the stage DequantRing: stored tiles to tiles that are multiplied, two warps each
//     consumers   S = Q K(n)^T │ softmax │ O += P V(n) │ ...
#pragma once

#include "attention/persistent/dequantizer.cuh"
#include "attention/persistent/loaders.cuh"
#include "attention/persistent/scheduler.cuh"
#include "attention/persistent/share_scheduler.cuh"
#include "common/registers.cuh"

namespace attnsmith {

// Grid: any number of CTAs; they take all tiles of all KV heads and splits among them, or a share of keys
// each. consume(pipeline, i) is the i-th of the warpgroups that multiply, and sets its registers.
template <class Config, class Consume>
__device__ void persistent_kernel(const abi::PersistentArguments& args, const Consume& consume) {
    using Stage = StageOf<Config>;
    constexpr bool kStored = sizeof(typename Config::KeyValue) == 1;
    static_assert(kStored == (is_same<Stage, DequantRing> || is_same<Stage, DequantInPlace>),
                  "8-bit keys are dequantized by this kernel, and no others");
    static_assert(
        !kStored || is_same<Stage, DequantInPlace> == is_same<ColumnsOf<Config>, LatentColumns<Config>>,
        "latents are dequantized in their place");
    extern __shared__ __align__(1024) char memory[];
    const PersistentPipeline<Config> pipeline{memory, SharedAddress::of(memory)};
    if (threadIdx.x == 0) {
        pipeline.init();
        prefetch_map(args.q);
        if constexpr (!Config::gather) {
            if (LoadedColumns<Config, false>::has_key_map(args)) prefetch_map(args.k);
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
            const int32 dequantizer = warp - abi::kLoaderWarps;
            if (dequantizer < kWarps)
                KeyDequantizer<Config, false>{pipeline, dequantizer}.run();
            else
                KeyDequantizer<Config, true>{pipeline, dequantizer - kWarps}.run();
        }
    } else {
        consume(pipeline, (warp - kProducers) / 4);
    }
}

}  // namespace attnsmith
