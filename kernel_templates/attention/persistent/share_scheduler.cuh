// The role of a persistent CTA that finds the tiles of its share (attention/shares.cuh).
#pragma once

#include "attention/persistent/blocks.cuh"
#include "common/registers.cuh"

namespace attnsmith {

// The share is found by all threads of the block, which are many and have registers, before the roles part.
// From there on a warp goes through it, as far ahead of the loaders as the ring of work tiles lets it.
template <class Config>
struct ShareScheduler {
    static constexpr int kThreads = abi::producer_warps(Config::shape) * 32 + Config::consumers * 128;

    const abi::PersistentArguments& args;
    const PersistentPipeline<Config>& pipeline;
    const int32 lane = threadIdx.x % 32;

    // Parts of a group have lines abreast, unless too many CTAs would be left over.
    static __device__ int32 abreast(const abi::PersistentArguments& args) {
        const int32 parts = args.kv_head_shares, ctas = gridDim.x;
        return ctas % parts * 16 <= ctas ? parts : 1;
    }

    // By all threads of the block; the result is there behind a barrier.
    static __device__ void begin(const abi::PersistentArguments& args,
                                 const PersistentPipeline<Config>& pipeline) {
        uint32 status = 0;
        Shares<Config, kThreads>(args.attention, pipeline.share(), tile_rows<Config>(args), abreast(args))
            .begin(status);
        report(args.attention, status);
    }

    __device__ void run() const {
        using WorkRing = typename PersistentPipeline<Config>::WorkRing;
        Shares<Config, 32> shares(args.attention, pipeline.share(), tile_rows<Config>(args), abreast(args));
#pragma unroll 1
        for (uint32 works = 0;; ++works) {
            const typename WorkRing::Position at(works);
            pipeline.work_ring().wait_empty(at);
            TileWork next;
            const bool is_last = !shares.take_by_warp(next);
            if (!is_last) set(next, pipeline.work(at.stage));
            forget(works);
            if (lane == 0) pipeline.publish(works, is_last);
            if (is_last) break;
        }
    }

    __device__ void set(const TileWork& next, WorkTile& work) const {
        if (lane == 0) {
            work.sequence = next.sequence;
            work.first_token = next.first_row / args.attention.group;
            work.set_head(args, next.kv_head);
            work.part = next.part;
            work.parts = TileParts(next.part, pipeline.share().share, abreast(args));
        }
        __syncwarp();
        const TileRows tile = work.rows(args, 0, kRowGroups<Config>);
        TileMask mask(tile);
        if constexpr (Config::absolute_cuts) {
            const PartPlaces places(tile, next.part, mask);
            if (lane == 0) work.places = places;
        } else {
            mask.template keep<Config::tile_kv>(next.part);
        }
        set_blocks<Config>(args, mask, work);
    }
};

}  // namespace attnsmith
