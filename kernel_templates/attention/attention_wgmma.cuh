// Attention on Hopper's asynchronous tensor cores, sm_90a: prefill, contiguous or paged KV.
//
//   A persistent CTA: one producer warp and Config::consumers warpgroups of 64 packed query rows each, which
//   take tiles of query rows (longest first) until there are none left.
//
//     producer    work ─ Q ─ K(n) ─ K(n-1) ─ V(n) ─ K(n-2) ─ V(n-1) ... ─ V(0) │ the next tile's work, Q, K
//     ...
//                   global ──TMA──> shared: Q, a ring of K and a ring of V, `stages` tiles each, mbarriers
//     consumer    S = Q K(n)^T │ softmax │ S = Q K(n-1)^T │ softmax of n-1  │ S = Q K(n-2)^T │ ... │ O / l
//                                        │ O += P V(n) ...... in its shade  │ O += P V(n-1)  │
//
//   Keys are taken from the last block to the first, so that a causal tile's masked blocks come first. The
//   consumers take turns in issuing their products (named barriers), so that one's softmax runs in the shade
//   of the others' products. P stays in registers, O goes to global memory from registers.
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

// What a CTA does next: the producer finds it, the consumers read it.
struct Work {
    Sequence sequence;
    TileKeys keys;
    int32 first_row;
    int32 kv_head;
    int32 split;
    int32 is_last;  // there is no work: the CTA is done

    // The rows of consumer warpgroups first ... first + count - 1.
    __device__ RowTile rows(const abi::WgmmaArguments& all, int32 first, int32 count) const {
        const int32 each = all.warpgroup_tokens * all.attention.group;
        return {all.attention, sequence, kv_head, first_row + first * each, count * each};
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
    __device__ uint32 work_full(uint32 slot) const { return barrier(1 + slot); }
    __device__ uint32 work_empty(uint32 slot) const { return barrier(1 + abi::kWgmmaWorkSlots + slot); }
    __device__ uint32 q_full(uint32 warpgroup) const {
        return barrier(1 + 2 * abi::kWgmmaWorkSlots + warpgroup);
    }
    __device__ uint32 q_empty(uint32 warpgroup) const { return q_full(Config::consumers + warpgroup); }
    __device__ uint32 ring(uint32 which, uint32 stage) const {
        return q_full(2 * Config::consumers + which * kStages + stage);
    }
    __device__ uint32 k_full(uint32 stage) const { return ring(0, stage); }
    __device__ uint32 k_empty(uint32 stage) const { return ring(1, stage); }
    __device__ uint32 v_full(uint32 stage) const { return ring(2, stage); }
    __device__ uint32 v_empty(uint32 stage) const { return ring(3, stage); }

    // Warps free what they have read, one arrival each.
    __device__ void init() const {
        constexpr int kWarps = Config::consumers * 4;
        mbarrier_init(landed(), 1);
        for (uint32 warpgroup = 0; warpgroup < Config::consumers; ++warpgroup) {
            mbarrier_init(q_full(warpgroup), 1);
            mbarrier_init(q_empty(warpgroup), 4);
        }
        for (uint32 slot = 0; slot < abi::kWgmmaWorkSlots; ++slot) {
            mbarrier_init(work_full(slot), 1);
            mbarrier_init(work_empty(slot), kWarps);
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

// The blocks of keys of a tile, last first.
template <class Config>
struct KeyBlocks {
    int32 first, end;

    __device__ explicit KeyBlocks(const TileKeys& keys) {
        first = keys.first / Config::tile_kv;
        end = keys.end > keys.first ? (keys.end + Config::tile_kv - 1) / Config::tile_kv : first;
    }
    __device__ bool empty() const { return end <= first; }
};

template <class Config>
struct WgmmaProducer {
    static constexpr abi::WgmmaShared kLayout = abi::wgmma_shared(Config::shape);
    static constexpr int kKeys = Config::tile_kv;

    const abi::WgmmaArguments& all;
    const WgmmaShared<Config>& shared;
    const int32 lane = threadIdx.x % 32;

    uint32 blocks = 0;  // of keys, of which K and V have been loaded
    uint32 works = 0;   // published
    uint32 tiles = 0;   // of q loaded
    uint32 cleared = 0;
    int32 page = 0, slot = 0;  // this lane's box of the block whose K was loaded last: its page and first row

    __device__ void run() {
        const abi::AttentionArguments& args = all.attention;
        // Paired, a sequence's last tile comes with its first, and so on: under a causal mask all pairs are
        // equally long. Tiles of one stream (a KV head of a sequence) are neighbours, which share its keys
        // in the L2 cache.
        const uint32 streams = args.kv_heads * args.splits * (all.sequence_tiles ? args.batch : 1);
        const uint32 tiles_of_stream = all.sequence_tiles ? all.sequence_tiles : args.tiles;
        const uint32 units = all.paired ? (tiles_of_stream + 1) / 2 : tiles_of_stream;
#pragma unroll 1
        for (uint32 unit = blockIdx.x; unit < units * streams; unit += gridDim.x) {
            const uint32 stream = unit / units;
            uint32 tile = unit - stream * units;
#pragma unroll 1
            for (;;) {
                if (find(stream, tile)) load();
                const uint32 other = tiles_of_stream - 1 - tile;
                if (!all.paired || other <= tile) break;
                tile = other;
            }
        }
        Work& work = next_slot();
        if (lane == 0) work.is_last = 1;
        publish();
        if (blockIdx.x == 0) {
            uint32 status = 0;
            check_lengths<Config>(args, Config::consumers * all.warpgroup_tokens * args.group, lane, 32,
                                  status);
            report(args, status);
        }
    }

    __device__ Work& next_slot() {
        const RingPlace<abi::kWgmmaWorkSlots> place(works);
        mbarrier_wait(shared.work_empty(place.slot), place.parity ^ 1);
        return shared.work(place.slot);
    }

    __device__ void publish() {
        if (lane == 0) mbarrier_arrive(shared.work_full(RingPlace<abi::kWgmmaWorkSlots>(works).slot));
        __syncwarp();
        ++works;
    }

    // False if there is nothing to do. Tiles are counted from a sequence's last one.
    __device__ bool find(uint32 stream, uint32 tile) {
        const abi::AttentionArguments& args = all.attention;
        const int32 tile_rows = Config::consumers * all.warpgroup_tokens * args.group;
        Work& work = next_slot();
        TilePlace place;
        uint32 sequences = 1;
        if (all.sequence_tiles) {
            sequences = args.batch;
            place = {int32(stream / args.kv_heads % sequences), int32(tile), all.sequence_tiles};
        } else {
            place = search_tile<Config>(args, int32(tile), tile_rows);
        }
        if (lane == 0) {
            work.kv_head = int32(stream % args.kv_heads);
            work.split = int32(stream / args.kv_heads / sequences);
            work.is_last = 0;
        }
        uint32 status = 0;
        Sequence sequence;
        int32 first_row;
        const bool found = load_tile<Config>(args, place, tile_rows, sequence, first_row, status);
        report(args, status);
        if (!found) return false;
        if (lane == 0) {
            work.sequence = sequence;
            work.first_row = first_row;
        }
        __syncwarp();  // what is in the slot need not stay in registers, of which a producer has few
        if (lane == 0) work.keys = TileKeys(work.rows(all, 0, Config::consumers), work.split);
        return true;
    }

    __device__ void load() {
        const Work& work = shared.work(RingPlace<abi::kWgmmaWorkSlots>(works).slot);
        publish();
        const KeyBlocks<Config> all_blocks(work.keys);
        if (all_blocks.empty()) return;
        load_k(work, all_blocks.end - 1, blocks);
        load_q(work);
        // K runs one block ahead of V, as the consumers take them.
#pragma unroll 1
        for (int32 n = all_blocks.end - 1; n >= all_blocks.first; --n) {
            const int32 v_page = page, v_slot = slot;
            if (n > all_blocks.first) load_k(work, n - 1, blocks + 1);
            load_v(work, n, v_page, v_slot);
            ++blocks;
        }
    }

    __device__ void load_q(const Work& work) {
        constexpr int kPanels = abi::wgmma_panels(Config::head_dim_qk);
        const int32 rows = all.warpgroup_tokens * all.attention.group;
        int32 token = int32(work.sequence.q_first) + work.first_row / all.attention.group;
#pragma unroll 1
        for (int32 warpgroup = 0; warpgroup < Config::consumers; ++warpgroup) {
            const uint32 full = shared.q_full(warpgroup);
            mbarrier_wait(shared.q_empty(warpgroup), ~tiles & 1);
            if (lane == 0) {
                mbarrier_arrive_expect(full, kPanels * rows * (abi::kWgmmaPanel * 2));
#pragma unroll
                for (int panel = 0; panel < kPanels; ++panel) {
                    tma_load(shared.q(warpgroup) + panel * kLayout.q_panel, all.q, full,
                             panel * abi::kWgmmaPanel, 0, token, work.kv_head,
                             all.attention.q_indptr ? 0 : work.sequence.batch);
                }
            }
            __syncwarp();
            token += all.warpgroup_tokens;
        }
        ++tiles;
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
        // Outside of a tensor the copy engine itself gives zeros.
        const bool ends_here =
            !Config::paged && work.sequence.kv_first + work.keys.end >= all.attention.kv_tokens;
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
        page = abi::kUnbounded;
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
        if constexpr (Config::paged) {
            if (lane * all.box_keys >= kKeys) return;
            const uint32 rows = target + lane * all.box_keys * (abi::kWgmmaPanel * 2);
#pragma unroll
            for (int panel = 0; panel < kPanels; ++panel) {
                tma_load(rows + panel * kLayout.kv_panel, map, barrier, panel * abi::kWgmmaPanel, box_slot,
                         work.kv_head, box_page);
            }
        } else if (lane == 0) {
#pragma unroll
            for (int panel = 0; panel < kPanels; ++panel) {
                tma_load(target + panel * kLayout.kv_panel, map, barrier, panel * abi::kWgmmaPanel,
                         int32(work.sequence.kv_first) + n * kKeys, work.kv_head,
                         all.attention.kv_indptr ? 0 : work.sequence.batch);
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
    static constexpr uint32 kBlockRows = 8 * abi::kWgmmaPanel * 2;  // bytes of eight rows
    // Turns are named barriers 1 ... consumers (0 is __syncthreads()'s): one warpgroup waits, one passes it
    // on.
    static constexpr int32 kTurnThreads = 256;

    const abi::WgmmaArguments& all;
    const WgmmaShared<Config>& shared;
    const int32 warpgroup;  // of the consumers
    const int32 lane = threadIdx.x % 32;
    const int32 warp_row = threadIdx.x / 32 % 4 * 16;  // of the warpgroup's

    uint32 blocks = 0;  // of keys done with
    uint32 works = 0, tiles = 0;

    FragmentRows<Config> rows;
    float m[2];          // maxima of the logits, in their own units
    float reference[2];  // what exponents are relative to, in base 2
    float factor[2];     // of O, when a reference has moved
    float l[2];          // of this thread's columns only, until close()
    float s[kKeys / 8][4];
    float o[Config::head_dim_vo / 8][4];
    uint32 p[kKeys / 16][4];

    __device__ void run() {
        if (warpgroup == Config::consumers - 1) pass_turn();
        for (;;) {
            const RingPlace<abi::kWgmmaWorkSlots> place(works++);
            mbarrier_wait(shared.work_full(place.slot), place.parity);
            const Work& work = shared.work(place.slot);
            if (work.is_last) return;
            attend(work);
            __syncwarp();
            free(shared.work_empty(place.slot));
        }
    }

    __device__ void take_turn() const { named_barrier_sync(1 + warpgroup, kTurnThreads); }
    __device__ void pass_turn() const {
        const int32 next = warpgroup + 1 == Config::consumers ? 0 : warpgroup + 1;
        named_barrier_arrive(1 + next, kTurnThreads);
    }

    __device__ void attend(const Work& work) {
        const KeyBlocks<Config> blocks_of(work.keys);
        // No row looks at the keys of this split, so the merge does not either.
        if (all.attention.splits > 1 && blocks_of.empty()) return;
#pragma unroll
        for (int j = 0; j < Config::head_dim_vo / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) o[j][i] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) m[i] = -infinity(), reference[i] = -3.402823466e38f, l[i] = 0.0f;
        if (!blocks_of.empty()) go_through(work, blocks_of);
        close(work);
    }

    __device__ void go_through(const Work& work, const KeyBlocks<Config>& blocks_of) {
        if constexpr (Config::alibi) rows.set(work.rows(all, warpgroup, 1), warp_row);
        mbarrier_wait(shared.q_full(warpgroup), tiles++ & 1);
        wait_k(0);
        multiply_queries(0);
        wgmma_wait<0>();
        pin(s);
        pin(o);
        int32 n = blocks_of.end - 1;
        for (;;) {
            wgmma_wait<1>();
            pin(s);
            free(shared.k_empty(slot(0)));
            const bool more = n > blocks_of.first;
            if (!more) free(shared.q_empty(warpgroup));
            const bool rescale = take_logits(work, n);
            // Between the softmax and the wait for O: a branch, which ptxas moves neither of them over.
            if (more) wait_k(1);
            wgmma_wait<0>();
            pin(o);
            if (n < blocks_of.end - 1) free(shared.v_empty(slot(-1)));
            if (rescale) scale_output();
            pack();
            if (!more) break;
            take_turn();
            multiply_queries(1);
            wait_v();
            multiply_values();
            pass_turn();
            ++blocks;
            --n;
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
        const uint32 q = descriptor_start(shared.q(warpgroup));
        const uint32 k = descriptor_start(shared.k(slot(ahead)));
        constexpr uint32 kEnd = descriptor_end(kBlockRows);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const int in_panel = step % 4 * 32;
            Config::multiply_queries(s, descriptor(q + (step / 4 * kLayout.q_panel + in_panel) / 16, kEnd),
                                     descriptor(k + (step / 4 * kLayout.kv_panel + in_panel) / 16, kEnd),
                                     step > 0);
        }
        wgmma_commit();
    }

    // O += P V, asynchronously.
    __device__ void multiply_values() {
        const uint32 v = descriptor_start(shared.v(slot(0)), kLayout.kv_panel);
        constexpr uint32 kEnd = descriptor_end(kBlockRows);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step) {
            Config::multiply_values(o, p[step], descriptor(v + step * (2 * kBlockRows / 16), kEnd));
        }
        wgmma_commit();
    }

    // Updates m, reference and l, and makes weights of the logits. Whether O has to be multiplied by
    // `factor`: the reference follows the maximum only once a weight could exceed 2^kSlack.
    __device__ bool take_logits(const Work& work, int32 n) {
        constexpr float kSlack = 8.0f;
        const float c = all.attention.scale_log2;
        rows.adjust(s, all.attention, n * kKeys);
        if (work.keys.masked(n * kKeys, (n + 1) * kKeys)) {
            if constexpr (!Config::alibi)
                rows.set(work.rows(all, warpgroup, 1), warp_row);  // not kept: registers are few
            rows.mask(s, n * kKeys);
        }
        bool moved = false;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float top = m[i];
#pragma unroll
            for (int j = 0; j < kKeys / 8; ++j) top = fmaxf(top, fmaxf(s[j][2 * i], s[j][2 * i + 1]));
            m[i] = row_max(top);
            const float next = m[i] * c - reference[i] > kSlack ? m[i] * c : reference[i];
            moved = moved || next != reference[i];
            factor[i] = exp2_approx(reference[i] - next);
            reference[i] = next;
            l[i] *= factor[i];
        }
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s[j][i] = exp2_approx(fmaf(s[j][i], c, -reference[i / 2]));
                l[i / 2] += s[j][i];
            }
        }
        pin(s);  // here, while a product is under way, and not behind the wait for it
        return __any_sync(0xffffffffu, moved);
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
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const PackedRow row = tile.row(warp_row + lane / 4 + 8 * i);
            // Exponents were relative to a rounded m c; others take them relative to m itself.
            const float c = all.attention.scale_log2;
            const float exact = m[i] == -infinity() ? 1.0f : exp2_approx(fmaf(-m[i], c, reference[i]));
            const float sum = row_sum(l[i]) * exact;
            if (all.attention.splits > 1) {
                if (!row.valid) continue;
                const int64 at = tile.partial(row, work.split);
                tile.store_partial_o<Config>(at, o, i, exact);
                if (lane % 4 == 0) tile.store_partial_ml(at, m[i], sum);
            } else {
                const RowResult result = finish_row(m[i], sum, c, tile.sink(row));
                store_row(tile, row, i, result.factor * exact);
                if (all.attention.lse && row.valid && lane % 4 == 0) tile.store_lse(row, result.lse);
            }
        }
    }

    // Four lanes hold a row in pieces of two columns: they trade them for whole chunks of eight.
    __device__ void store_row(const RowTile& tile, const PackedRow& row, int i, float factor) const {
        constexpr int kChunks = Config::head_dim_vo / 8;
        uint16* const target = tile.output(row);
#pragma unroll
        for (int first = 0; first < kChunks; first += 4) {
            uint32 chunk[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const int from = first + j < kChunks ? first + j : 0;
                chunk[j] = Element::pack(o[from][2 * i] * factor, o[from][2 * i + 1] * factor);
            }
            transpose_over_quad(chunk);
            const int32 mine = first + lane % 4;
            if (row.valid && mine < kChunks) store_16_bytes<16>(target + mine * 8, chunk);
        }
    }

    // x[j] of lane i becomes x[i] of lane j.
    __device__ void transpose_over_quad(uint32 (&x)[4]) const {
#pragma unroll
        for (int bit = 1; bit <= 2; bit *= 2) {
            const bool upper = lane & bit;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (j & bit) continue;
                const uint32 given = upper ? x[j] : x[j | bit];
                const uint32 taken = __shfl_xor_sync(0xffffffffu, given, bit);
                x[j] = upper ? taken : x[j];
                x[j | bit] = upper ? x[j | bit] : taken;
            }
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
        prefetch_map(args.k);
        prefetch_map(args.v);
    }
    __syncthreads();
    // The same over a warp, and known to be.
    const int32 warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (warp < 4) {
        set_registers_down<Config::producer_registers>();
        if (warp == 0) WgmmaProducer<Config>{args, shared}.run();
    } else {
        set_registers_up<Config::consumer_registers>();
        WgmmaConsumer<Config>{args, shared, warp / 4 - 1}.run();
    }
}

}  // namespace attnsmith
