// The roles of a wgmma CTA that bring data: a warp each for Q, K and V.
#pragma once

#include "attention/wgmma_work.cuh"
#include "common/copy.cuh"
#include "common/tma.cuh"

namespace attnsmith {

template <class Config>
struct WgmmaQueryLoader {
    static constexpr abi::WgmmaShared kLayout = abi::wgmma_shared(Config::shape);
    static constexpr int kPanels = abi::wgmma_panels(Config::head_dim_qk);

    const abi::WgmmaArguments& all;
    const WgmmaShared<Config>& shared;
    const int32 lane = threadIdx.x % 32;

    __device__ void run() const {
#pragma unroll 1
        for (uint32 works = 0; const Work* work = shared.take(works); ++works) {
            load(*work, works);
            if (lane == 0) shared.give_back(works);
        }
    }

    __device__ void load(const Work& work, uint32 works) const {
        const int32 rows = all.warpgroup_tokens * all.attention.group;
        int32 token = int32(work.sequence.q_first) + work.first_token;
#pragma unroll 1
        for (int32 warpgroup = 0; warpgroup < Config::consumers; ++warpgroup) {
            const uint32 full = shared.q_full(warpgroup);
            mbarrier_wait(shared.q_empty(warpgroup), ~works & 1);
            if (lane == 0) {
                mbarrier_arrive_expect(full, kPanels * rows * (abi::kWgmmaPanel * 2));
#pragma unroll 1
                for (int panel = 0; panel < kPanels; ++panel) {
                    tma_load(shared.q(warpgroup) + panel * kLayout.q_panel, all.q, full,
                             panel * abi::kWgmmaPanel, 0, token, work.kv_head,
                             all.attention.q_indptr ? 0 : work.sequence.batch);
                }
            }
            __syncwarp();
            token += all.warpgroup_tokens;
        }
    }
};

// Loads K, or V, block by block. What a block needs to be found is known before there is room for it: every
// clock between the two is one that the consumers may wait for.
template <class Config, bool Values>
struct WgmmaKeyLoader {
    static constexpr abi::WgmmaShared kLayout = abi::wgmma_shared(Config::shape);
    static constexpr int kHeadDim = Values ? Config::head_dim_vo : Config::head_dim_qk;
    static constexpr int kPanels = abi::wgmma_panels(kHeadDim);
    static constexpr int kKeys = Config::tile_kv;
    static constexpr int kChunks = abi::kWgmmaPanel / 8;  // of 16 bytes in a panel's row
    // Of paged KV a lane looks up the page of its box of keys, or of one row in each 32.
    static constexpr int kLookUps = Config::gather ? kKeys / 32 : 1;
    static_assert(!Config::gather || kKeys % 32 == 0);

    const abi::WgmmaArguments& all;
    const WgmmaShared<Config>& shared;
    const int32 lane = threadIdx.x % 32;

    uint32 blocks = 0;  // that have been loaded
    uint32 cleared = 0;
    int32 head = 0, batch = 0, first_token = 0;  // of the tile's keys
    int32 pages[kLookUps];                       // of the next block; -1: the keys are to be zero
    int32 slot = 0;                              // of the box in its page

    __device__ uint32 target(uint32 stage) const { return Values ? shared.v(stage) : shared.k(stage); }
    __device__ uint32 full(uint32 stage) const {
        return Values ? shared.v_full(stage) : shared.k_full(stage);
    }
    __device__ uint32 empty(uint32 stage) const {
        return Values ? shared.v_empty(stage) : shared.k_empty(stage);
    }

    __device__ void run() {
#pragma unroll 1
        for (uint32 works = 0; const Work* work = shared.take(works); ++works) {
            load(*work);
            if (lane == 0) shared.give_back(works);
        }
    }

    __device__ void load(const Work& work) {
        head = work.stored_head;
        batch = all.attention.kv_indptr ? 0 : work.sequence.batch;
        first_token = int32(work.sequence.kv_first);
        look_up(work, work.blocks.end - 1);
        if constexpr (Config::gather)
            gather(work);
        else
            copy(work);
    }

    // After the keys of the first block, the last that are loaded. Not before: a tile that is drawn early is
    // one that a CTA which ends sooner cannot take.
    __device__ void ask_for_next_tile() const {
        if (!Values && lane == 0) mbarrier_arrive(shared.wanted());
    }

    __device__ void copy(const Work& work) {
#pragma unroll 1
        for (int32 n = work.blocks.end - 1; n >= work.blocks.first; --n, ++blocks) {
            const RingPlace<Config::stages> place(blocks);
            const bool clear = Values && has_unseen_rows(work, n);
            const uint32 landing = clear ? shared.landed() : full(place.slot);
            mbarrier_wait(empty(place.slot), place.parity ^ 1);
            if (lane == 0) mbarrier_arrive_expect(landing, kPanels * kLayout.kv_panel);
            __syncwarp();
            copy_boxes(target(place.slot), landing, n);
            if (n > work.blocks.first)
                look_up(work, n - 1);
            else
                ask_for_next_tile();
            if (!clear) continue;
            clear_unseen_rows(work, n, target(place.slot));
            publish(place.slot);
        }
    }

    // A block is handed over when all of it has landed. If there is room for the next one by then, that is
    // requested first.
    __device__ void gather(const Work& work) {
        bool pending = false;  // the block before
#pragma unroll 1
        for (int32 n = work.blocks.end - 1; n >= work.blocks.first; --n, ++blocks) {
            const RingPlace<Config::stages> place(blocks);
            const uint32 before = RingPlace<Config::stages>(blocks - 1).slot;
            const uint32 room = mbarrier_test(empty(place.slot), place.parity ^ 1);
            if (pending && !__all_sync(0xffffffffu, room)) {
                copy_wait<0>();
                publish(before);
                pending = false;
            }
            mbarrier_wait(empty(place.slot), place.parity ^ 1);
            __syncwarp();
            gather_rows(n, target(place.slot));
            copy_commit();
            if (n > work.blocks.first)
                look_up(work, n - 1);
            else
                ask_for_next_tile();
            if (pending) {
                copy_wait<1>();
                publish(before);
            }
            pending = true;
        }
        copy_wait<0>();
        publish(RingPlace<Config::stages>(blocks - 1).slot);
    }

    // What this warp's lanes have written to a stage.
    __device__ void publish(uint32 stage) const {
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(full(stage));
    }

    // Whether block n has rows that no row of the tile sees, and that the copy engine does not make zeros as
    // it does outside of a tensor. (One without tokens has a map of something else.)
    __device__ bool has_unseen_rows(const Work& work, int32 n) const {
        const bool ends_here = !Config::paged && all.attention.kv_tokens > 0 &&
                               work.sequence.kv_first + work.keys.end >= all.attention.kv_tokens;
        return work.keys.first > n * kKeys || (work.keys.end < (n + 1) * kKeys && !ends_here);
    }

    __device__ void clear_unseen_rows(const Work& work, int32 n, uint32 target) {
        mbarrier_wait(shared.landed(), cleared++ & 1);
        clear_rows(target, 0, work.keys.first - n * kKeys);
        clear_rows(target, work.keys.end - n * kKeys, kKeys);
    }

    __device__ void clear_rows(uint32 target, int32 begin, int32 end) const {
#pragma unroll 1
        for (int32 panel = 0; panel < kPanels; ++panel) {
#pragma unroll 1
            for (int32 i = begin * kChunks + lane; i < end * kChunks; i += 32) {
                const uint32 chunk = target + panel * kLayout.kv_panel + i * 16;
                asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(chunk), "r"(0) : "memory");
            }
        }
    }

    // Of its sequence: key / page_size.
    __device__ uint32 page_of(uint32 key) const {
        return __umulhi(key * 2, all.page_magic) >> all.page_shift;
    }

    // Which pages this lane's keys of block n are in. Where there is none, or no key is read, there will be
    // zeros.
    __device__ void look_up(const Work& work, int32 n) {
        if constexpr (Config::paged) {
            const abi::AttentionArguments& args = all.attention;
            const int32 many = Config::gather ? 1 : all.box_keys;
            bool out_of_range = false;
#pragma unroll
            for (int i = 0; i < kLookUps; ++i) {
                const int32 in_block = i * 32 + lane * many, key = n * kKeys + in_block;
                pages[i] = -1;
                if (in_block >= kKeys || key >= work.keys.end || key + many <= work.keys.first) continue;
                const uint32 in_sequence = page_of(key);
                if (!Config::gather) slot = key - in_sequence * args.page_size;
                const int64 id =
                    index_at<typename Config::Index>(args.page_ids, work.sequence.page_row + in_sequence);
                if (id < 0 || id >= args.pages)
                    out_of_range = true;
                else
                    pages[i] = int32(id);
            }
            if (out_of_range) report(args, abi::kStatusPageOutOfRange);
        }
    }

    // By the copy engine, a box a panel or, of pages, a box a lane and panel.
    __device__ void copy_boxes(uint32 target, uint32 landing, int32 n) const {
        const abi::TensorMap& map = Values ? all.v : all.k;
        if constexpr (Config::paged) {
            if (lane * all.box_keys >= kKeys) return;
            const uint32 rows = target + lane * all.box_keys * (abi::kWgmmaPanel * 2);
#pragma unroll
            for (int panel = 0; panel < kPanels; ++panel) {
                tma_load(rows + panel * kLayout.kv_panel, map, landing, panel * abi::kWgmmaPanel, slot, head,
                         pages[0]);
            }
        } else if (lane == 0) {
#pragma unroll
            for (int panel = 0; panel < kPanels; ++panel) {
                tma_load(target + panel * kLayout.kv_panel, map, landing, panel * abi::kWgmmaPanel,
                         first_token + n * kKeys, head, batch);
            }
        }
    }

    // Row by row, eight lanes each: pages of which a tile holds no whole 8 rows. A lane knows the address of
    // one row in 32; what is left to do for each four rows has to be little, as one warp does it for all.
    __device__ void gather_rows(int32 n, uint32 target) const {
        const abi::AttentionArguments& args = all.attention;
        const int32 chunk = lane % kChunks, first_row = lane / kChunks;
        const uint16* const base = static_cast<const uint16*>(Values ? args.v : args.k) +
                                   head * (Values ? args.v_head_stride : args.k_head_stride);
        // Rows r and r + 8 are swizzled alike.
        uint32 to[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32 row = i * 4 + first_row;
            to[i] = target + row * (abi::kWgmmaPanel * 2) + (chunk ^ row) * 16;
        }
#pragma unroll
        for (int group = 0; group < kLookUps; ++group) {
            const uint32 key = n * kKeys + group * 32 + lane;
            const int32 in_page = key - page_of(key) * args.page_size;
            const uint16* const mine =
                base + max(pages[group], 0) * (Values ? args.v_batch_stride : args.k_batch_stride) +
                in_page * (Values ? args.v_token_stride : args.k_token_stride);
            const uint32 seen = __ballot_sync(0xffffffffu, pages[group] >= 0) >> first_row;
#pragma unroll
            for (int step = 0; step < 8; ++step) {
                const uint64 source =
                    __shfl_sync(0xffffffffu, reinterpret_cast<uint64>(mine), step * 4 + first_row) +
                    chunk * 16;
#pragma unroll
                for (int panel = 0; panel < kPanels; ++panel) {
                    const bool is_in = (panel + 1) * abi::kWgmmaPanel <= kHeadDim ||
                                       panel * abi::kWgmmaPanel + chunk * 8 < kHeadDim;
                    copy_16_bytes<16>(to[step % 2] + (group * 4 + step / 2) * (8 * abi::kWgmmaPanel * 2) +
                                          panel * kLayout.kv_panel,
                                      reinterpret_cast<const char*>(source) + panel * (abi::kWgmmaPanel * 2),
                                      (seen >> (step * 4) & 1) && is_in);
                }
            }
        }
    }
};

}  // namespace attnsmith
