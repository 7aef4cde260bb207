// What the roles of a wgmma CTA share: the work at hand, shared memory and the barriers in it.
#pragma once

#include "abi/attention_wgmma.h"
#include "attention/rows.cuh"
#include "common/mbarrier.cuh"

namespace attnsmith {

// Blocks of keys first ... end - 1.
struct KeyBlocks {
    int32 first, end;
};

// Those that keys first ... end - 1 are in.
template <int32 Keys>
__device__ inline KeyBlocks blocks_of(const TileKeys& keys) {
    return {keys.first / Keys, (keys.end + Keys - 1) / Keys};
}

// Those that a warpgroup's own rows see, maybe none. Blocks plain_first ... plain_end - 1 need no mask.
struct OwnBlocks {
    int32 first, end, plain_first, plain_end;
};

// What a CTA does next: the scheduler finds it, the others read it.
struct Work {
    OwnBlocks own[abi::kWgmmaConsumers];
    Sequence sequence;
    TileKeys keys;
    KeyBlocks blocks;  // end < 0: there is no work, the CTA is done
    int32 first_token;
    int32 kv_head;      // as the arguments count them, where parts of a group have one each
    int32 stored_head;  // of k and v
    int32 split;

    __device__ bool is_last() const { return blocks.end < 0; }
    // The rows of consumer warpgroups first ... first + count - 1.
    __device__ RowTile rows(const abi::WgmmaArguments& all, int32 first, int32 count) const {
        const int32 group = all.attention.group, each = all.warpgroup_tokens * group;
        return {all.attention, sequence, kv_head, first_token * group + first * each, count * each};
    }
};
static_assert(sizeof(Work) <= abi::kWgmmaWorkBytes && abi::kWgmmaWorkBytes % 16 == 0);

// What is computed from x is computed again from here on, not kept: the warps that bring work and data have
// few registers.
template <class Integer>
__device__ inline void forget(Integer& x) {
    asm volatile("" : "+r"(x));
}

// The place of the `count`-th tile in a ring, and the parity of the phase in which it is filled.
template <uint32 Slots>
struct RingPlace {
    uint32 slot, parity;
    __device__ explicit RingPlace(uint32 count) : slot(count % Slots), parity(count / Slots % 2) {}
};

template <class Config>
struct WgmmaShared {
    static constexpr abi::WgmmaShared kLayout = abi::wgmma_shared(Config::shape);
    static constexpr int kStages = Config::stages;

    char* memory;
    uint32 base;

    __device__ Work& work(uint32 slot) const {
        return *reinterpret_cast<Work*>(memory + kLayout.work + slot * abi::kWgmmaWorkBytes);
    }
    __device__ abi::PackedTiles& sorted(uint32 sequence) const {
        return reinterpret_cast<abi::PackedTiles*>(memory + kLayout.sorted)[sequence];
    }
    __device__ uint32 q(uint32 warpgroup) const {
        return base + kLayout.q + warpgroup * (abi::kWgmmaRows * abi::kWgmmaPanel * 2);
    }
    __device__ uint32 k(uint32 stage) const { return base + kLayout.k + stage * kLayout.k_stage; }
    __device__ uint32 v(uint32 stage) const { return base + kLayout.v + stage * kLayout.v_stage; }

    __device__ uint32 rows(bool of_values) const {
        return base + kLayout.rows + of_values * (Config::tile_kv * sizeof(uint64));
    }

    __device__ uint32 barrier(uint32 i) const { return base + kLayout.barriers + i * 8; }
    __device__ uint32 landed() const { return barrier(0); }  // a V tile of which rows have to be cleared
    __device__ uint32 wanted() const { return barrier(1); }  // the next tile, of the scheduler
    __device__ uint32 work_full(uint32 slot) const { return barrier(2 + slot); }
    __device__ uint32 work_empty(uint32 slot) const { return barrier(2 + abi::kWgmmaWorkSlots + slot); }
    __device__ uint32 q_full(uint32 warpgroup) const {
        return barrier(2 + 2 * abi::kWgmmaWorkSlots + warpgroup);
    }
    __device__ uint32 q_empty(uint32 warpgroup) const { return q_full(Config::consumers + warpgroup); }
    __device__ uint32 ring(uint32 which, uint32 stage) const {
        return q_full(2 * Config::consumers + which * kStages + stage);
    }
    __device__ uint32 k_full(uint32 stage) const { return ring(0, stage); }
    __device__ uint32 k_empty(uint32 stage) const { return ring(1, stage); }
    __device__ uint32 v_full(uint32 stage) const { return ring(2, stage); }
    __device__ uint32 v_empty(uint32 stage) const { return ring(3, stage); }

    // By one lane: the work is there to be taken, or there is none any more.
    __device__ void publish(uint32 works, bool is_last) const {
        const uint32 slot = RingPlace<abi::kWgmmaWorkSlots>(works).slot;
        if (is_last) work(slot).blocks.end = -1;
        mbarrier_arrive(work_full(slot));
    }
    // The next work; null where there is none. Whoever has read it gives it back, each warp by one lane.
    __device__ const Work* take(uint32 works) const {
        const RingPlace<abi::kWgmmaWorkSlots> place(works);
        mbarrier_wait(work_full(place.slot), place.parity);
        const Work& next = work(place.slot);
        return next.is_last() ? nullptr : &next;
    }
    __device__ void give_back(uint32 works) const {
        mbarrier_arrive(work_empty(RingPlace<abi::kWgmmaWorkSlots>(works).slot));
    }
    // By a warp: load(work, works) for each.
    template <class Load>
    __device__ void load_each(const Load& load) const {
#pragma unroll 1
        for (uint32 works = 0; const Work* work = take(works); ++works) {
            load(*work, works);
            if (threadIdx.x % 32 == 0) give_back(works);
        }
    }

    // Warps free what they have read, one arrival each: of the work the three that load, too.
    __device__ void init() const {
        constexpr int kWarps = Config::consumers * 4;
        mbarrier_init(landed(), 1);
        mbarrier_init(wanted(), 1);
        for (uint32 warpgroup = 0; warpgroup < Config::consumers; ++warpgroup) {
            mbarrier_init(q_full(warpgroup), 1);
            mbarrier_init(q_empty(warpgroup), 4);
        }
        for (uint32 slot = 0; slot < abi::kWgmmaWorkSlots; ++slot) {
            mbarrier_init(work_full(slot), 1);
            mbarrier_init(work_empty(slot), kWarps + 3);
        }
        for (uint32 stage = 0; stage < kStages; ++stage) {
            mbarrier_init(k_full(stage), 1);
            mbarrier_init(k_empty(stage), kWarps);
            mbarrier_init(v_full(stage), 1);
            mbarrier_init(v_empty(stage), kWarps);
        }
        mbarrier_init_fence();
    }
};

}  // namespace attnsmith
