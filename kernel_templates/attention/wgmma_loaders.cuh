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
        shared.load_each([this](const Work& work, uint32 works) { load(work, works); });
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

// What a gathered row is where there is none to read.
template <int Chunks>
__device__ uint4 zero_row[Chunks];

// Loads K, or V, block by block. What a block needs to be found is known before there is room for it: every
// clock between the two is one that the consumers may wait for.
template <class Config, bool Values>
struct WgmmaKeyLoader {
    using PageId = typename Config::Index;
    static constexpr abi::WgmmaShared kLayout = abi::wgmma_shared(Config::shape);
    static constexpr int kHeadDim = Values ? Config::head_dim_vo : Config::head_dim_qk;
    static constexpr int kPanels = abi::wgmma_panels(kHeadDim);
    static constexpr int kKeys = Config::tile_kv;
    static constexpr int kChunks = abi::kWgmmaPanel / 8;  // of 16 bytes in a panel's row
    static_assert(!Config::gather || kKeys % 32 == 0);

    const abi::WgmmaArguments& all;
    const WgmmaShared<Config>& shared;
    const int32 lane = threadIdx.x % 32;

    uint32 blocks = 0;  // that have been loaded
    uint32 cleared = 0;
    int32 head = 0, batch = 0, first_token = 0;  // of the tile's keys
    int32 page = -1;                             // of this lane's box of keys; -1: they are to be zero
    int32 slot = 0;                              // of the box in its page

    __device__ uint32 target(uint32 stage) const { return Values ? shared.v(stage) : shared.k(stage); }
    __device__ uint32 full(uint32 stage) const {
        return Values ? shared.v_full(stage) : shared.k_full(stage);
    }
    __device__ uint32 empty(uint32 stage) const {
        return Values ? shared.v_empty(stage) : shared.k_empty(stage);
    }

    __device__ void run() {
        shared.load_each([this](const Work& work, uint32) { load(work); });
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
            hand_over(place.slot);
        }
    }

    // While the rows of a block are under way, those of the next one are found.
    __device__ void gather(const Work& work) {
#pragma unroll 1
        for (int32 n = work.blocks.end - 1; n >= work.blocks.first; --n, ++blocks) {
            const RingPlace<Config::stages> place(blocks);
            mbarrier_wait(empty(place.slot), place.parity ^ 1);
            gather_rows(target(place.slot));
            __syncwarp();
            copy_commit();
            if (n > work.blocks.first)
                look_up(work, n - 1);
            else
                ask_for_next_tile();
            copy_wait<0>();
            hand_over(place.slot);
        }
    }

    // What this warp's lanes have written to a stage.
    __device__ void hand_over(uint32 stage) const {
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

    // Pages of a sequence, by their place in it.
    __device__ const PageId* page_ids(const Work& work) const {
        return static_cast<const PageId*>(all.attention.page_ids) + work.sequence.page_row;
    }
    __device__ bool is_page(PageId id) const {
        return static_cast<uint64>(int64(id)) < static_cast<uint64>(all.attention.pages);
    }

    // What copying block n needs to know.
    __device__ void look_up(const Work& work, int32 n) {
        if constexpr (Config::gather)
            note_rows(work, n);
        else if constexpr (Config::paged)
            note_boxes(work, n);
    }

    // Of no page where there will be zeros: no key is read.
    __device__ void note_boxes(const Work& work, int32 n) {
        const int32 many = all.box_keys, key = n * kKeys + lane * many;
        page = -1;
        if (lane * many >= kKeys || key >= work.keys.end || key + many <= work.keys.first) return;
        const uint32 in_sequence = page_of(key);
        slot = key - in_sequence * all.attention.page_size;
        const PageId id = page_ids(work)[in_sequence];
        if (is_page(id))
            page = int32(id);
        else
            report(all.attention, abi::kStatusPageOutOfRange);
    }

    // A lane notes one row in 32, and requests all pages before it looks at one.
    __device__ void note_rows(const Work& work, int32 n) const {
        constexpr int kRows = kKeys / 32;
        const abi::AttentionArguments& args = all.attention;
        const PageId* const pages = page_ids(work);
        const void* const zeros = zero_row<kHeadDim / 8>;
        const uint32 first_key = n * kKeys + lane;
        const uint32 first_read = work.keys.first, count = work.keys.end - work.keys.first;
        PageId ids[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const uint32 key = first_key + i * 32;
            ids[i] = *(key - first_read < count ? pages + page_of(key) : static_cast<const PageId*>(zeros));
        }
        const uint64 page_bytes = 2 * (Values ? args.v_batch_stride : args.k_batch_stride);
        const uint64 token_bytes = 2 * (Values ? args.v_token_stride : args.k_token_stride);
        const uint64 base = reinterpret_cast<uint64>(Values ? args.v : args.k) +
                            2 * head * (Values ? args.v_head_stride : args.k_head_stride);
        bool out_of_range = false;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const uint32 key = first_key + i * 32;
            const bool read = key - first_read < count, is_there = is_page(ids[i]);
            const uint64 row =
                base + uint32(ids[i]) * page_bytes + (key - page_of(key) * args.page_size) * token_bytes;
            store_shared_8_bytes(row_address(i * 32 + lane),
                                 read && is_there ? row : reinterpret_cast<uint64>(zeros));
            out_of_range |= read && !is_there;
        }
        if (out_of_range) report(args, abi::kStatusPageOutOfRange);
        __syncwarp();
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
                         page);
            }
        } else if (lane == 0) {
#pragma unroll
            for (int panel = 0; panel < kPanels; ++panel) {
                tma_load(target + panel * kLayout.kv_panel, map, landing, panel * abi::kWgmmaPanel,
                         first_token + n * kKeys, head, batch);
            }
        }
    }

    // Of row r; those of r and r + 4 are read together.
    __device__ uint32 row_address(uint32 row) const {
        return shared.rows(Values) + (row / 8 * 8 + row % 4 * 2 + row / 4 % 2) * sizeof(uint64);
    }

    // Row by row, eight lanes each: pages of which a tile holds no whole 16 rows. One warp does it for all,
    // with few registers, so each four rows have to be few instructions.
    __device__ void gather_rows(uint32 target) const {
        const int32 chunk = lane % kChunks, first_row = lane / kChunks;
        // Rows r and r + 8 are swizzled alike.
        uint32 to[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32 row = i * 4 + first_row;
            to[i] = target + row * (abi::kWgmmaPanel * 2) + (chunk ^ row) * 16;
        }
        const uint32 from = row_address(first_row);
        constexpr int kAtOnce = 4;  // loads from shared memory and copies to it do not mix well
#pragma unroll
        for (int step = 0; step < kKeys / 4; step += kAtOnce) {
            uint32 rows[kAtOnce / 2][4];
#pragma unroll
            for (int i = 0; i < kAtOnce / 2; ++i)
                load_shared_16_bytes(rows[i], from + (step / 2 + i) * (8 * sizeof(uint64)));
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const uint64 source =
                    (uint64(rows[i / 2][i % 2 * 2 + 1]) << 32 | rows[i / 2][i % 2 * 2]) + chunk * 16;
                const uint32 row = to[i % 2] + (step + i) / 2 * (8 * abi::kWgmmaPanel * 2);
#pragma unroll
                for (int panel = 0; panel < kPanels; ++panel) {
                    const bool is_in = (panel + 1) * abi::kWgmmaPanel <= kHeadDim ||
                                       panel * abi::kWgmmaPanel + chunk * 8 < kHeadDim;
                    copy_16_bytes<16>(row + panel * kLayout.kv_panel,
                                      reinterpret_cast<const char*>(source) + panel * (abi::kWgmmaPanel * 2),
                                      is_in);
                }
            }
        }
    }
};

}  // namespace attnsmith
