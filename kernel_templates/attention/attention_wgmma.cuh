// Attention on Hopper's asynchronous tensor cores, sm_90a: prefill, contiguous or paged KV.
//
//   A persistent CTA: a warpgroup whose warps bring work and data, and Config::consumers warpgroups of 64
//   packed query rows each, which multiply.
//
//     scheduler   draws tiles of query rows, one ahead ──mbarrier──> everybody else
//     producer    Q ─ K(n) ─ K(n-1) ─ V(n) ─ K(n-2) ─ V(n-1) ─ ... ─ V(0) │ the next tile's Q, K, V ...
//                   global ──TMA──> shared: Q, a ring of K and a ring of V, `stages` tiles each
//     consumer    S = Q K(n)^T │ softmax │ S = Q K(n-1)^T │ softmax of n-1  │ S = Q K(n-2)^T │ ... │ O / l
//                                        │ O += P V(n) ...... in its shade  │ O += P V(n-1)  │
//
//   Keys are taken from the last block to the first, so that a causal tile's masked blocks come first. While
//   one consumer is at its softmax the other has the tensor cores. P stays in registers, and so does Q where
//   there is room; O goes to global memory from registers.
//   Rows of V that no row of the tile sees are cleared where a block holds such rows: P is zero there, but
//   zero times what is in memory need not be.
#pragma once

#include "abi/attention_wgmma.h"
#include "attention/rows.cuh"
#include "common/copy.cuh"
#include "common/element.cuh"
#include "common/mbarrier.cuh"
#include "common/tma.cuh"
#include "common/wgmma.cuh"

namespace attnsmith {

// Blocks of keys first ... end - 1.
struct KeyBlocks {
    int32 first, end;
};

// Those that a warpgroup's own rows see, maybe none. Blocks plain_first ... plain_end - 1 need no mask.
struct OwnBlocks {
    int32 first, end, plain_first, plain_end;
};

// What a CTA does next: the scheduler finds it, the others read it.
struct Work {
    OwnBlocks own[abi::kWgmmaConsumers];
    Sequence sequence;
    TileKeys keys;
    KeyBlocks blocks;
    int32 first_token;
    int32 kv_head;
    int32 split;
    int32 is_last;  // there is no work: the CTA is done

    // The rows of consumer warpgroups first ... first + count - 1.
    __device__ RowTile rows(const abi::WgmmaArguments& all, int32 first, int32 count) const {
        const int32 group = all.attention.group, each = all.warpgroup_tokens * group;
        return {all.attention, sequence, kv_head, first_token * group + first * each, count * each};
    }
};
static_assert(sizeof(Work) <= abi::kWgmmaWorkBytes && abi::kWgmmaWorkBytes % 16 == 0);

template <class Config>
struct WgmmaShared {
    static constexpr abi::WgmmaShared kLayout = abi::wgmma_shared(Config::shape);
    static constexpr int kStages = Config::stages;

    char* memory;
    uint32 base;

    __device__ Work& work(uint32 slot) const {
        return *reinterpret_cast<Work*>(memory + kLayout.work + slot * abi::kWgmmaWorkBytes);
    }
    __device__ uint32 q(uint32 warpgroup) const {
        return base + kLayout.q + warpgroup * (abi::kWgmmaRows * abi::kWgmmaPanel * 2);
    }
    __device__ uint32 k(uint32 stage) const { return base + kLayout.k + stage * kLayout.k_stage; }
    __device__ uint32 v(uint32 stage) const { return base + kLayout.v + stage * kLayout.v_stage; }

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

    // Warps free what they have read, one arrival each: of the work those that load, too.
    __device__ void init() const {
        constexpr int kWarps = Config::consumers * 4;
        constexpr int kLoaders = Config::gather ? 3 : 1;
        mbarrier_init(landed(), 1);
        mbarrier_init(wanted(), 1);
        for (uint32 warpgroup = 0; warpgroup < Config::consumers; ++warpgroup) {
            mbarrier_init(q_full(warpgroup), 1);
            mbarrier_init(q_empty(warpgroup), 4);
        }
        for (uint32 slot = 0; slot < abi::kWgmmaWorkSlots; ++slot) {
            mbarrier_init(work_full(slot), 1);
            mbarrier_init(work_empty(slot), kWarps + kLoaders);
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

// The place of the `count`-th tile in a ring, and the parity of the phase in which it is filled.
template <uint32 Slots>
struct RingPlace {
    uint32 slot, parity;
    __device__ explicit RingPlace(uint32 count) : slot(count % Slots), parity(count / Slots % 2) {}
};

// Draws tiles. A stream is a KV head in a split, of a sequence where all sequences have as many tiles; its
// tiles are neighbours, which share its keys in the L2 cache. Where a mask makes tiles unequal they are drawn
// by twos, last and first, last but one and second, ..., so that all draws are equally long; in the end
// singly, the long ones of several streams first, so that all CTAs end together.
template <class Config>
struct WgmmaScheduler {
    static constexpr int kKeys = Config::tile_kv;

    const abi::WgmmaArguments& all;
    const WgmmaShared<Config>& shared;
    const int32 lane = threadIdx.x % 32;

    __device__ uint32 stream_tiles() const {
        return all.sequence_tiles ? all.sequence_tiles : all.attention.tiles;
    }
    __device__ uint32 sequences() const { return all.sequence_tiles ? all.attention.batch : 1; }
    __device__ int32 tile_rows() const {
        return Config::consumers * all.warpgroup_tokens * all.attention.group;
    }

    __device__ void run() const {
        uint32 draw = blockIdx.x;
        bool second = false;  // of two
#pragma unroll 1
        for (uint32 works = 0;; go_on(draw, second)) {
            const RingPlace<abi::kWgmmaWorkSlots> place(works);
            Work& work = shared.work(place.slot);
            mbarrier_wait(shared.work_empty(place.slot), place.parity ^ 1);
            const bool is_last = draw >= all.draws;
            if (!is_last && !find(draw, second, work)) continue;
            if (lane == 0) {
                work.is_last = is_last;
                mbarrier_arrive(shared.work_full(place.slot));
            }
            if (is_last) break;
            mbarrier_wait(shared.wanted(), works++ & 1);
        }
        if (blockIdx.x == 0) {
            uint32 status = 0;
            check_lengths<Config>(all.attention, tile_rows(), lane, 32, status);
            report(all.attention, status);
        }
    }

    // The first draw is the CTA's own; the others go to whoever asks first.
    __device__ void go_on(uint32& draw, bool& second) const {
        second = draw < all.paired_draws && !second;
        if (second) return;
        if (gridDim.x >= all.draws) {
            draw = all.draws;
            return;
        }
        uint32 count = 0;
        if (lane == 0) {
            uint32* const counter = all.attention.status + abi::kItemCounter;
            count = atomicAdd(counter, 1);
            // Every CTA asks once in vain: this was the last one, and the next launch begins at 0.
            if (count == all.draws - 1) *counter = 0;
        }
        draw = gridDim.x + __shfl_sync(0xffffffffu, count, 0);
    }

    // False if there is nothing to do.
    __device__ bool find(uint32 draw, bool second, Work& found) const {
        const abi::AttentionArguments& args = all.attention;
        __syncwarp();  // all lanes are done with what the slot held of a draw without work
        const uint32 tiles = stream_tiles(), twos = (tiles + 1) / 2;
        uint32 stream, tile;  // from the stream's last one on
        if (draw < all.paired_draws) {
            stream = draw / twos;
            tile = draw - stream * twos;
            if (second) {
                const uint32 other = tiles - 1 - tile;
                if (other == tile) return false;
                tile = other;
            }
        } else {
            const uint32 single = draw - all.paired_draws;
            const uint32 round = single / (all.mixed_streams * tiles);
            const uint32 in_round = single - round * (all.mixed_streams * tiles);
            tile = in_round / all.mixed_streams;
            stream =
                all.paired_draws / twos + round * all.mixed_streams + in_round - tile * all.mixed_streams;
        }
        TilePlace place;
        if (all.sequence_tiles) {
            place = {int32(stream / args.kv_heads % sequences()), int32(tile), all.sequence_tiles};
        } else {
            place = search_tile<Config>(args, int32(tile), tile_rows());
        }
        if (lane == 0) {
            found.kv_head = int32(stream % args.kv_heads);
            found.split = int32(stream / args.kv_heads / sequences());
        }
        uint32 status = 0;
        Sequence sequence;
        int32 first_row;
        const bool has_rows = load_tile<Config>(args, place, tile_rows(), sequence, first_row, status);
        report(args, status);
        if (!has_rows) return false;
        if (lane == 0) {
            found.sequence = sequence;
            found.first_token = first_row / args.group;
        }
        __syncwarp();  // what is in the slot need not stay in registers, of which a producer has few
        TileKeys keys(found.rows(all, 0, Config::consumers), found.split);
        if (keys.end <= keys.first) {
            // No row looks at the keys of this split, so the merge does not either.
            if (args.splits > 1) return false;
            keys = TileKeys::nothing();
        }
        // Where no key is seen there is a block all the same, which nobody attends to.
        KeyBlocks blocks{keys.first / kKeys, 0};
        blocks.end = max((keys.end + kKeys - 1) / kKeys, blocks.first + 1);
        if (lane == 0) {
            found.keys = keys;
            found.blocks = blocks;
        }
        if (lane < Config::consumers) found.own[lane] = own_blocks(found, blocks);
        __syncwarp();
        return true;
    }

    // Of the consumer warpgroup `lane`.
    __device__ OwnBlocks own_blocks(const Work& work, const KeyBlocks& all_blocks) const {
        const RowTile tile = work.rows(all, lane, 1);
        if (tile.first >= work.sequence.rows(all.attention)) return {all_blocks.first, all_blocks.first};
        const TileKeys keys(tile, work.split);
        if (keys.end <= keys.first) return {all_blocks.first, all_blocks.first};
        return {keys.first / kKeys, (keys.end + kKeys - 1) / kKeys, (keys.seen_by_all + kKeys - 1) / kKeys,
                keys.seen_until / kKeys};
    }
};

// Loads what the consumers need, in the order in which they need it.
template <class Config>
struct WgmmaProducer {
    static constexpr abi::WgmmaShared kLayout = abi::wgmma_shared(Config::shape);
    static constexpr int kKeys = Config::tile_kv;

    const abi::WgmmaArguments& all;
    const WgmmaShared<Config>& shared;
    const int32 lane = threadIdx.x % 32;

    uint32 blocks = 0;  // of keys, of which K and V have been loaded
    uint32 cleared = 0;
    int32 page = 0, slot = 0;  // this lane's box of the block whose K was loaded last: its page and first row

    __device__ void run() {
#pragma unroll 1
        for (uint32 works = 0;; ++works) {
            const RingPlace<abi::kWgmmaWorkSlots> place(works);
            mbarrier_wait(shared.work_full(place.slot), place.parity);
            const Work& work = shared.work(place.slot);
            if (work.is_last) return;
            load(work, works);
            if (lane == 0) mbarrier_arrive(shared.work_empty(place.slot));
        }
    }

    __device__ void load(const Work& work, uint32 works) {
        if constexpr (Config::gather) {
            load_q(work, works);
            return;
        }
        const KeyBlocks of = work.blocks;
        int32 v_page = 0, v_slot = 0;
        // Queries in shared memory are read for as long as keys are; those in registers make room at once.
        if (Config::queries_in_registers) load_q(work, works);
            // K runs one block ahead of V, as the consumers take them.
#pragma unroll 1
        for (int32 n = of.end - 1; n >= of.first - 1; --n) {
            const bool is_first = n == of.end - 1;
            if (n >= of.first) load_k(work, n, is_first ? blocks : blocks + 1);
            // Not before: a tile that is drawn early is one that a CTA which ends sooner cannot take.
            if (n == of.first && lane == 0) mbarrier_arrive(shared.wanted());
            if (is_first) {
                if (!Config::queries_in_registers) load_q(work, works);
            } else {
                load_v(work, n + 1, v_page, v_slot);
                ++blocks;
            }
            v_page = page, v_slot = slot;
        }
    }

    __device__ void load_q(const Work& work, uint32 works) {
        constexpr int kPanels = abi::wgmma_panels(Config::head_dim_qk);
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

    __device__ void load_k(const Work& work, int32 n, uint32 count) {
        const RingPlace<Config::stages> place(count);
        if constexpr (Config::paged) look_up(work, n);
        const uint32 full = shared.k_full(place.slot);
        mbarrier_wait(shared.k_empty(place.slot), place.parity ^ 1);
        if (lane == 0) mbarrier_arrive_expect(full, kLayout.k_stage);
        __syncwarp();
        load<Config::head_dim_qk>(all.k, shared.k(place.slot), full, work, n, page, slot);
    }

    __device__ void load_v(const Work& work, int32 n, int32 v_page, int32 v_slot) {
        const int32 begin = work.keys.first - n * kKeys;  // rows before are to be zero, and from `end` on
        const int32 end = work.keys.end - n * kKeys;
        // Outside of a tensor the copy engine itself gives zeros; one without tokens has a map of something
        // else.
        const bool ends_here = !Config::paged && all.attention.kv_tokens > 0 &&
                               work.sequence.kv_first + work.keys.end >= all.attention.kv_tokens;
        const bool clear = begin > 0 || (end < kKeys && !ends_here);
        const RingPlace<Config::stages> place(blocks);
        const uint32 full = shared.v_full(place.slot);
        const uint32 landing = clear ? shared.landed() : full;
        mbarrier_wait(shared.v_empty(place.slot), place.parity ^ 1);
        if (lane == 0) mbarrier_arrive_expect(landing, kLayout.v_stage);
        __syncwarp();
        load<Config::head_dim_vo>(all.v, shared.v(place.slot), landing, work, n, v_page, v_slot);
        if (!clear) return;
        mbarrier_wait(landing, cleared++ & 1);
        clear_rows(shared.v(place.slot), 0, begin);
        clear_rows(shared.v(place.slot), end, kKeys);
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(full);
    }

    __device__ void clear_rows(uint32 target, int32 begin, int32 end) const {
        constexpr int kChunks = abi::kWgmmaPanel / 8;
#pragma unroll 1
        for (int32 panel = 0; panel < abi::wgmma_panels(Config::head_dim_vo); ++panel) {
#pragma unroll 1
            for (int32 i = begin * kChunks + lane; i < end * kChunks; i += 32) {
                const uint32 chunk = target + panel * kLayout.kv_panel + i * 16;
                asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(chunk), "r"(0) : "memory");
            }
        }
    }

    // Where this lane's box of block n is. A page that is none, or of which no key is read, lies outside of
    // the tensor: zeros.
    __device__ void look_up(const Work& work, int32 n) {
        const abi::AttentionArguments& args = all.attention;
        const int32 key = n * kKeys + lane * all.box_keys;
        page = -1;
        slot = 0;
        if (lane * all.box_keys >= kKeys || key >= work.keys.end || key + all.box_keys <= work.keys.first)
            return;
        const uint32 in_sequence = uint32(key) / uint32(args.page_size);
        slot = key - in_sequence * args.page_size;
        const int64 id =
            index_at<typename Config::Index>(args.page_ids, work.sequence.page_row + in_sequence);
        if (id < 0 || id >= args.pages) {
            report(args, abi::kStatusPageOutOfRange);
        } else {
            page = int32(id);
        }
    }

    template <int HeadDim>
    __device__ void load(const abi::TensorMap& map, uint32 target, uint32 barrier, const Work& work, int32 n,
                         int32 box_page, int32 box_slot) const {
        constexpr int kPanels = abi::wgmma_panels(HeadDim);
        const int32 kv_head = int32(uint32(work.kv_head) / uint32(all.kv_head_shares));
        if constexpr (Config::paged) {
            if (lane * all.box_keys >= kKeys) return;
            const uint32 rows = target + lane * all.box_keys * (abi::kWgmmaPanel * 2);
#pragma unroll 1
            for (int panel = 0; panel < kPanels; ++panel) {
                tma_load(rows + panel * kLayout.kv_panel, map, barrier, panel * abi::kWgmmaPanel, box_slot,
                         kv_head, box_page);
            }
        } else if (lane == 0) {
#pragma unroll 1
            for (int panel = 0; panel < kPanels; ++panel) {
                tma_load(target + panel * kLayout.kv_panel, map, barrier, panel * abi::kWgmmaPanel,
                         int32(work.sequence.kv_first) + n * kKeys, kv_head,
                         all.attention.kv_indptr ? 0 : work.sequence.batch);
            }
        }
    }
};

// Loads K, or V, from pages of which a tile holds no whole 8 rows: row by row, eight lanes each.
template <class Config, bool Values>
struct WgmmaGatherer {
    static constexpr abi::WgmmaShared kLayout = abi::wgmma_shared(Config::shape);
    static constexpr int kHeadDim = Values ? Config::head_dim_vo : Config::head_dim_qk;
    static constexpr int kKeys = Config::tile_kv;
    static constexpr int kGroups = kKeys / 32;  // of rows: a lane looks up one of each
    static_assert(kKeys % 32 == 0);

    const abi::WgmmaArguments& all;
    const WgmmaShared<Config>& shared;
    const int32 lane = threadIdx.x % 32;

    uint32 blocks = 0;
    int32 pages[kGroups];  // of this lane's rows of the next block; -1: the row is to be zero

    __device__ void run() {
#pragma unroll 1
        for (uint32 works = 0;; ++works) {
            const RingPlace<abi::kWgmmaWorkSlots> place(works);
            mbarrier_wait(shared.work_full(place.slot), place.parity);
            const Work& work = shared.work(place.slot);
            if (work.is_last) return;
            load(work);
            if (lane == 0) mbarrier_arrive(shared.work_empty(place.slot));
        }
    }

    __device__ void load(const Work& work) {
        const KeyBlocks of = work.blocks;
        look_up(work, of.end - 1);
#pragma unroll 1
        for (int32 n = of.end - 1; n >= of.first; --n, ++blocks) {
            const RingPlace<Config::stages> place(blocks);
            const uint32 full = Values ? shared.v_full(place.slot) : shared.k_full(place.slot);
            mbarrier_wait(Values ? shared.v_empty(place.slot) : shared.k_empty(place.slot), place.parity ^ 1);
            __syncwarp();
            copy(work, n, Values ? shared.v(place.slot) : shared.k(place.slot));
            copy_commit();
            if (n > of.first)
                look_up(work, n - 1);
            else if (!Values && lane == 0)
                mbarrier_arrive(shared.wanted());
            copy_wait<0>();
            fence_async_proxy();
            __syncwarp();
            if (lane == 0) mbarrier_arrive(full);
        }
    }

    __device__ void look_up(const Work& work, int32 n) {
        const abi::AttentionArguments& args = all.attention;
        bool out_of_range = false;
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
            const int32 key = n * kKeys + group * 32 + lane;
            pages[group] = -1;
            if (key < work.keys.first || key >= work.keys.end) continue;
            const int64 id = index_at<typename Config::Index>(
                args.page_ids, work.sequence.page_row + uint32(key) / uint32(args.page_size));
            if (id < 0 || id >= args.pages)
                out_of_range = true;
            else
                pages[group] = int32(id);
        }
        if (out_of_range) report(args, abi::kStatusPageOutOfRange);
    }

    __device__ void copy(const Work& work, int32 n, uint32 target) const {
        constexpr int kChunks = abi::kWgmmaPanel / 8;
        const abi::AttentionArguments& args = all.attention;
        const uint16* const base = static_cast<const uint16*>(Values ? args.v : args.k) +
                                   work.kv_head * (Values ? args.v_head_stride : args.k_head_stride);
        const int32 chunk = lane % kChunks;
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
            const uint32 slot = uint32(n * kKeys + group * 32 + lane) % uint32(args.page_size);
            const int64 mine = pages[group] < 0
                                   ? -1
                                   : pages[group] * (Values ? args.v_batch_stride : args.k_batch_stride) +
                                         slot * (Values ? args.v_token_stride : args.k_token_stride);
#pragma unroll 2
            for (int32 step = 0; step < 8; ++step) {
                const int32 row = step * 4 + lane / kChunks;
                const int64 offset = __shfl_sync(0xffffffffu, mine, row);
                const uint16* const source = base + (offset < 0 ? 0 : offset) + chunk * 8;
                const uint32 to =
                    target + (group * 32 + row) * (abi::kWgmmaPanel * 2) + (chunk ^ row % kChunks) * 16;
#pragma unroll
                for (int panel = 0; panel < abi::wgmma_panels(kHeadDim); ++panel) {
                    const int column = panel * abi::kWgmmaPanel + chunk * 8;
                    copy_16_bytes<16>(to + panel * kLayout.kv_panel, source + panel * abi::kWgmmaPanel,
                                      offset >= 0 && column < kHeadDim);
                }
            }
        }
    }
};

template <class Config>
struct WgmmaConsumer {
    using Element = typename Config::Element;
    static constexpr abi::WgmmaShared kLayout = abi::wgmma_shared(Config::shape);
    static constexpr int kKeys = Config::tile_kv;
    static constexpr int kSteps = abi::padded_head_dim(Config::head_dim_qk) / 16;
    static constexpr bool kQueriesInRegisters = Config::queries_in_registers;
    // Eights of columns that are made weights before the wait for O: some, so that O has time, and no more,
    // so that weights can be packed between exponentials.
    static constexpr int kEarly = kKeys / 8 * 3 / 8;
    static constexpr float kNothing = -3.402823466e38f;  // below any logit

    const abi::WgmmaArguments& all;
    const WgmmaShared<Config>& shared;
    const int32 warpgroup;  // of the consumers
    const int32 lane = threadIdx.x % 32;
    const int32 warp_row = threadIdx.x / 32 % 4 * 16;  // of the warpgroup's

    uint32 blocks = 0;  // of keys done with
    uint32 places;      // of this thread's two rows in the warpgroup: tokens and heads, 8 bits each

    FragmentRows<Config> rows;
    float m[2];       // the logit that a row's exponents are relative to
    float slack;      // by how much a logit may exceed it, in this warp
    float l[2];       // sum of the weights, of this thread's columns only, until close()
    float factor[2];  // of O, when m has moved
    float s[kKeys / 8][4];
    float o[Config::head_dim_vo / 8][4];
    uint32 p[kKeys / 16][4];
    uint32 q[kQueriesInRegisters ? kSteps : 1][4];

    __device__ void run() {
        places = 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32 row = warp_row + lane / 4 + 8 * i, group = all.attention.group;
            places |= (row / group | row % group << 8) << (16 * i);
        }
#pragma unroll 1
        for (uint32 works = 0;; ++works) {
            const RingPlace<abi::kWgmmaWorkSlots> place(works);
            mbarrier_wait(shared.work_full(place.slot), place.parity);
            const Work& work = shared.work(place.slot);
            if (work.is_last) return;
            mbarrier_wait(shared.q_full(warpgroup), works & 1);
            start(work);
            go_through(work);
            close(work);
            __syncwarp();
            free(shared.work_empty(place.slot));
        }
    }

    __device__ PackedRow row(const Work& work, int i) const {
        const int32 in_warpgroup = places >> (16 * i) & 0xff, head = places >> (16 * i + 8) & 0xff;
        const int32 token = work.first_token + warpgroup * all.warpgroup_tokens + in_warpgroup;
        return {token, work.kv_head * all.attention.group + head,
                in_warpgroup < all.warpgroup_tokens && token < work.sequence.q_len};
    }

    __device__ void set_rows(const Work& work) {
        const PackedRow both[2] = {row(work, 0), row(work, 1)};
        rows.set(all.attention, work.sequence, both);
    }

    __device__ void start(const Work& work) {
#pragma unroll
        for (int j = 0; j < Config::head_dim_vo / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) o[j][i] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            m[i] = kNothing;
            l[i] = 0.0f;
        }
        slack = all.slack;
        if constexpr (Config::alibi) set_rows(work);
        if constexpr (kQueriesInRegisters) {
            const int32 row = warp_row + lane % 16;
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                const int32 chunk = step * 2 + lane / 16;
                load_matrices(q[step], shared.q(warpgroup) + chunk / 8 * kLayout.q_panel +
                                           row * (abi::kWgmmaPanel * 2) + (chunk ^ row) % 8 * 16);
            }
        }
    }

    // The tile's blocks. Those that only other warpgroups' rows see are let pass.
    __device__ void go_through(const Work& work) {
        const OwnBlocks own = work.own[warpgroup];
        pass(work.blocks.end - own.end);
        if (own.first < own.end)
            attend(work, own);
        else
            free(shared.q_empty(warpgroup));
        pass(own.first - work.blocks.first);
    }

    __device__ void pass(int32 count) {
#pragma unroll 1
        for (; count > 0; --count) {
            wait_k(0);
            wait_v();
            __syncwarp();
            free(shared.k_empty(slot(0)));
            free(shared.v_empty(slot(0)));
            ++blocks;
        }
    }

    // The warpgroup's own blocks, of which there is one at least.
    __device__ void attend(const Work& work, const OwnBlocks& own) {
        wait_k(0);
        multiply_queries(0);
        // A product has them, so that they are in registers.
        if (kQueriesInRegisters) free(shared.q_empty(warpgroup));
        wgmma_wait<0>();
        pin(s);
        pin(o);
        for (int32 n = own.end - 1;; --n) {
            wgmma_wait<1>();  // S; the product with V goes on
            pin(s);
            free(shared.k_empty(slot(0)));
            const bool more = n > own.first;
            if (!kQueriesInRegisters && !more) free(shared.q_empty(warpgroup));
            float reference[2];
            const bool moved = take_logits(work, n, n < own.plain_first || n >= own.plain_end, reference);
            weigh<0, kEarly>(reference);
            // Never: but ptxas, which does not know, cannot move weights over a branch that depends on their
            // sum, to behind the wait for O.
            if (l[0] + l[1] < 0.0f) asm volatile("nanosleep.u32 20;" ::: "memory");
            wgmma_wait<0>();
            pin(o);
            if (n < own.end - 1) free(shared.v_empty(slot(-1)));
            weigh<kEarly, kKeys / 8>(reference);
            if (moved && n < own.end - 1) scale_output();
            pack();
            if (!more) break;
            wait_k(1);
            multiply_queries(1);
            wait_v();
            multiply_values();
            ++blocks;
        }
        wait_v();
        multiply_values();
        wgmma_wait<0>();
        pin(o);
        free(shared.v_empty(slot(0)));
        ++blocks;
    }

    // Of the block whose weights come next, or of one `ahead` of it.
    __device__ uint32 slot(int32 ahead) const { return RingPlace<Config::stages>(blocks + ahead).slot; }
    __device__ void wait_k(int32 ahead) const {
        const RingPlace<Config::stages> place(blocks + ahead);
        mbarrier_wait(shared.k_full(place.slot), place.parity);
    }
    __device__ void wait_v() const {
        const RingPlace<Config::stages> place(blocks);
        mbarrier_wait(shared.v_full(place.slot), place.parity);
    }
    __device__ void free(uint32 empty) const {
        if (lane == 0) mbarrier_arrive(empty);
    }

    // S = Q K^T, asynchronously.
    __device__ void multiply_queries(int32 ahead) {
        const uint32 k = descriptor_start(shared.k(slot(ahead)));
        const uint32 q_tile = kQueriesInRegisters ? 0 : descriptor_start(shared.q(warpgroup));
        wgmma_fence();
        if constexpr (kQueriesInRegisters) {
            Config::multiply_queries(s, q, k);
        } else {
            Config::multiply_queries(s, q_tile, k);
        }
        wgmma_commit();
    }

    // O += P V, asynchronously.
    __device__ void multiply_values() {
        const uint32 v = descriptor_start(shared.v(slot(0)), kLayout.kv_panel);
        wgmma_fence();
        Config::multiply_values(o, p, v);
        wgmma_commit();
    }

    // A weight is exp2(c (s - m)). It is computed as exp2(c s - reference), where that is an fma, with the
    // reference c m: rounding that is nothing while c m is small. Of a row whose c m is large m is subtracted
    // from the logits first. All by selection: a branch costs more than what it spares.
    __device__ bool is_large(int i) const {
        constexpr float kLarge = 8192.0f;  // rounded by 2^-11: the largest weight is 1 in 16 bits
        return (m[i] > kNothing) & (fabsf(m[i] * all.attention.scale_log2) > kLarge);
    }
    __device__ float reference(int i) const {
        const float reference = fmaxf(m[i] * all.attention.scale_log2, kNothing);
        return is_large(i) ? 0.0f : reference;
    }
    // c m, less what the weights' exponents are relative to.
    __device__ float excess(int i) const {
        const float excess = fmaf(m[i], all.attention.scale_log2, -reference(i));
        return is_large(i) | (m[i] == kNothing) ? 0.0f : excess;
    }

    // Masks the logits and looks for the largest. Whether O has to be multiplied by `factor`: m follows the
    // maximum only when a logit exceeds it by `slack`, so that in most blocks nobody waits for a maximum over
    // lanes.
    __device__ bool take_logits(const Work& work, int32 n, bool masked, float (&reference)[2]) {
        rows.adjust(s, all.attention, n * kKeys);
        if (masked) {
            if constexpr (!Config::alibi) set_rows(work);  // not kept
            rows.mask(s, n * kKeys);
        }
        float top[2][2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            top[i][0] = fmaxf(s[0][2 * i], s[0][2 * i + 1]);
            top[i][1] = fmaxf(s[1][2 * i], s[1][2 * i + 1]);
#pragma unroll
            for (int j = 2; j < kKeys / 8; ++j)
                top[i][j % 2] = fmaxf(top[i][j % 2], fmaxf(s[j][2 * i], s[j][2 * i + 1]));
            top[i][0] = fmaxf(top[i][0], top[i][1]);
            reference[i] = fmaxf(m[i] * all.attention.scale_log2, kNothing);
        }
        const bool moves = __any_sync(0xffffffffu, top[0][0] - m[0] > slack || top[1][0] - m[1] > slack);
        if (moves) move(top[0][0], top[1][0], reference);
        return moves;
    }

    // m to the maxima of rows where these exceed it by much. Of large rows every block comes here: m is
    // subtracted from their logits.
    __device__ void move(float top0, float top1, float (&now)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float before = m[i], excess_before = excess(i), next = row_max(i == 0 ? top0 : top1);
            const bool moves = next - before > all.slack;
            m[i] = moves ? next : before;
            const float change =
                exp2_approx(fmaf(before - next, all.attention.scale_log2, excess(i) - excess_before));
            factor[i] = moves ? change : 1.0f;
            l[i] *= factor[i];
            now[i] = reference(i);
        }
        const bool any_large = __any_sync(0xffffffffu, is_large(0) | is_large(1));
        slack = any_large ? -infinity() : all.slack;
        if (!any_large) return;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float base = is_large(i) ? m[i] : 0.0f;
#pragma unroll
            for (int j = 0; j < kKeys / 8; ++j) {
                s[j][2 * i] -= base;
                s[j][2 * i + 1] -= base;
            }
        }
    }

    // Logits to weights, of columns 8 First ... 8 End - 1.
    template <int First, int End>
    __device__ void weigh(const float (&reference)[2]) {
#pragma unroll
        for (int j = First; j < End; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s[j][i] = exp2_approx(fmaf(s[j][i], all.attention.scale_log2, -reference[i / 2]));
                l[i / 2] += s[j][i];
            }
        }
    }

    __device__ void scale_output() {
#pragma unroll
        for (int j = 0; j < Config::head_dim_vo / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) o[j][i] *= factor[i / 2];
        }
    }

    // P in the layout of the A operand.
    __device__ void pack() {
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float(&pair)[4] = s[2 * step + i / 2];
                p[step][i] = Element::pack(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
            }
        }
    }

    __device__ void close(const Work& work) {
        const RowTile tile = work.rows(all, warpgroup, 1);
        const float c = all.attention.scale_log2;
        PackedRow row[2];
        float top[2], exact[2], sum[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            row[i] = this->row(work, i);
            top[i] = m[i] == kNothing ? -infinity() : m[i];
            exact[i] = exp2_approx(-excess(i));  // others take weights relative to m itself
            sum[i] = row_sum(l[i]) * exact[i];
        }
        const bool split = all.attention.splits > 1;
        RowResult result[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            result[i] = finish_row(top[i], sum[i], c, tile.sink(row[i]));
            factor[i] = split ? exact[i] : result[i].factor * exact[i];
        }
        scale_output();  // in one place for both ways to store it
        if (split) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (!row[i].valid) continue;
                const int64 at = tile.partial(row[i], work.split);
                tile.store_partial_o<Config>(at, o, i, 1.0f);
                if (lane % 4 == 0) tile.store_partial_ml(at, top[i], sum[i]);
            }
            return;
        }
        if (all.attention.lse && lane % 4 == 0) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (row[i].valid) tile.store_lse(row[i], result[i].lse);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) store_row(row[i].valid ? tile.output(row[i]) : nullptr, i);
    }

    // Four lanes hold a row in pieces of two columns: they trade them for whole chunks of eight, all at once,
    // so that one exchange does not wait for the one before.
    __device__ void store_row(uint16* target, int i) const {
        constexpr int kChunks = Config::head_dim_vo / 8;
        constexpr int kRounds = (kChunks + 3) / 4;
        uint32 chunk[kRounds][4];
#pragma unroll
        for (int j = 0; j < kRounds * 4; ++j) {
            const int from = j < kChunks ? j : 0;
            chunk[j / 4][j % 4] = Element::pack(o[from][2 * i], o[from][2 * i + 1]);
        }
        trade<1>(chunk);
        trade<2>(chunk);
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int32 mine = round * 4 + lane % 4;
            if (target != nullptr && mine < kChunks) store_16_bytes<16>(target + mine * 8, chunk[round]);
        }
    }

    // With the lane that differs in `Bit`, x[j] for x[j ^ Bit] where bits differ: both trades together make
    // x[j] of lane i the x[i] of lane j. In one statement: the compiler takes long over so many selections.
    template <int Bit, int Rounds>
    __device__ void trade(uint32 (&x)[Rounds][4]) const {
#pragma unroll
        for (int i = 0; i < Rounds * 4; ++i) {
            const int round = i / 4, low = i % 4, high = low | Bit;
            if (low & Bit) continue;
            asm volatile(
                "{.reg .pred upper; .reg .b32 traded; setp.ne.b32 upper, %2, 0; "
                "selp.b32 traded, %0, %1, upper; shfl.sync.bfly.b32 traded, traded, %3, 31, 0xffffffff; "
                "selp.b32 %0, traded, %0, upper; selp.b32 %1, %1, traded, upper;}"
                : "+r"(x[round][low]), "+r"(x[round][high])
                : "r"(lane & Bit), "n"(Bit));
        }
    }
};

// Grid: any number of CTAs; they take all tiles of all KV heads and splits among them.
template <class Config>
__device__ void attention_wgmma(const abi::WgmmaArguments& args) {
    extern __shared__ __align__(1024) char memory[];
    const WgmmaShared<Config> shared{memory, shared_address(memory)};
    if (threadIdx.x == 0) {
        shared.init();
        prefetch_map(args.q);
        if constexpr (!Config::gather) {
            prefetch_map(args.k);
            prefetch_map(args.v);
        }
    }
    __syncthreads();
    // The same over a warp, and known to be.
    const int32 warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (warp < 4) {
        set_registers_down<Config::producer_registers>();
        if (warp == 0) WgmmaScheduler<Config>{args, shared}.run();
        if (warp == 1) WgmmaProducer<Config>{args, shared}.run();
        if constexpr (Config::gather) {
            if (warp == 2) WgmmaGatherer<Config, false>{args, shared}.run();
            if (warp == 3) WgmmaGatherer<Config, true>{args, shared}.run();
        }
    } else {
        set_registers_up<Config::consumer_registers>();
        WgmmaConsumer<Config>{args, shared, warp / 4 - 1}.run();
    }
}

}  // namespace attnsmith
