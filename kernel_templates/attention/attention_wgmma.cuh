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

// What a CTA does next: the scheduler finds it, producer and consumers read it.
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

    // Warps free what they have read, one arrival each: of the work the producer, too.
    __device__ void init() const {
        constexpr int kWarps = Config::consumers * 4;
        mbarrier_init(landed(), 1);
        for (uint32 warpgroup = 0; warpgroup < Config::consumers; ++warpgroup) {
            mbarrier_init(q_full(warpgroup), 1);
            mbarrier_init(q_empty(warpgroup), 4);
        }
        for (uint32 slot = 0; slot < abi::kWgmmaWorkSlots; ++slot) {
            mbarrier_init(work_full(slot), 1);
            mbarrier_init(work_empty(slot), kWarps + 1);
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

// The blocks of keys of a tile. Where no key is seen there is one all the same, of which all is masked.
template <class Config>
struct KeyBlocks {
    int32 first, end;

    __device__ explicit KeyBlocks(const TileKeys& keys) {
        first = keys.first / Config::tile_kv;
        end = max((keys.end + Config::tile_kv - 1) / Config::tile_kv, first + 1);
    }
};

// Draws tiles. A stream is a KV head in a split, of a sequence where all sequences have as many tiles; its
// tiles are neighbours, which share its keys in the L2 cache. They go by twos, last and first, last but one
// and second, ...: under a causal mask a long and a short one, so that all twos are equally long.
template <class Config>
struct WgmmaScheduler {
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
        const uint32 streams = all.attention.kv_heads * all.attention.splits * sequences();
        const uint32 items = (stream_tiles() + 1) / 2 * 2 * streams;
        uint32 item = blockIdx.x * all.draw;
#pragma unroll 1
        for (uint32 works = 0;; ++works) {
            const RingPlace<abi::kWgmmaWorkSlots> place(works);
            Work& work = shared.work(place.slot);
            mbarrier_wait(shared.work_empty(place.slot), place.parity ^ 1);
#pragma unroll 1
            while (item < items && !find(item, work)) item = next(item, items);
            if (lane == 0) {
                work.is_last = item >= items;
                mbarrier_arrive(shared.work_full(place.slot));
            }
            if (item >= items) break;
            item = next(item, items);
        }
        if (blockIdx.x == 0) {
            uint32 status = 0;
            check_lengths<Config>(all.attention, tile_rows(), lane, 32, status);
            report(all.attention, status);
        }
    }

    // The first `draw` items are the CTA's own; the others go to whoever asks first.
    __device__ uint32 next(uint32 item, uint32 items) const {
        if ((item + 1) % all.draw != 0) return item + 1;
        const uint32 draws = items / all.draw;
        if (gridDim.x >= draws) return items;
        uint32 count = 0;
        if (lane == 0) {
            uint32* const counter = all.attention.status + abi::kItemCounter;
            count = atomicAdd(counter, 1);
            // Every CTA asks once in vain: this was the last one, and the next launch begins at 0.
            if (count == draws - 1) *counter = 0;
        }
        return (gridDim.x + __shfl_sync(0xffffffffu, count, 0)) * all.draw;
    }

    // False if there is nothing to do.
    __device__ bool find(uint32 item, Work& found) const {
        const abi::AttentionArguments& args = all.attention;
        __syncwarp();  // all lanes are done with what the slot held of an item without work
        const uint32 twos = (stream_tiles() + 1) / 2;
        const uint32 stream = item / 2 / twos;
        uint32 tile = item / 2 - stream * twos;  // from the last one on
        if (item % 2) {
            const uint32 other = stream_tiles() - 1 - tile;
            if (other == tile) return false;
            tile = other;
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
            found.first_row = first_row;
        }
        __syncwarp();  // what is in the slot need not stay in registers, of which a producer has few
        TileKeys keys(found.rows(all, 0, Config::consumers), found.split);
        if (keys.end <= keys.first) {
            // No row looks at the keys of this split, so the merge does not either.
            if (args.splits > 1) return false;
            keys = TileKeys::nothing();
        }
        if (lane == 0) found.keys = keys;
        return true;
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
        const KeyBlocks<Config> of(work.keys);
        int32 v_page = 0, v_slot = 0;
        // K runs one block ahead of V, as the consumers take them.
#pragma unroll 1
        for (int32 n = of.end - 1; n >= of.first - 1; --n) {
            const bool is_first = n == of.end - 1;
            if (n >= of.first) load_k(work, n, is_first ? blocks : blocks + 1);
            if (is_first) {
                load_q(work, works);
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
        int32 token = int32(work.sequence.q_first) + work.first_row / all.attention.group;
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
        if constexpr (Config::paged) {
            if (lane * all.box_keys >= kKeys) return;
            const uint32 rows = target + lane * all.box_keys * (abi::kWgmmaPanel * 2);
#pragma unroll 1
            for (int panel = 0; panel < kPanels; ++panel) {
                tma_load(rows + panel * kLayout.kv_panel, map, barrier, panel * abi::kWgmmaPanel, box_slot,
                         work.kv_head, box_page);
            }
        } else if (lane == 0) {
#pragma unroll 1
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
    static constexpr bool kQueriesInRegisters = Config::queries_in_registers;
    static constexpr float kNothing = -3.402823466e38f;  // below any logit

    const abi::WgmmaArguments& all;
    const WgmmaShared<Config>& shared;
    const int32 warpgroup;  // of the consumers
    const int32 lane = threadIdx.x % 32;
    const int32 warp_row = threadIdx.x / 32 % 4 * 16;  // of the warpgroup's

    uint32 blocks = 0;  // of keys done with

    FragmentRows<Config> rows;
    float m[2];       // the logit that a row's exponents are relative to
    float l[2];       // sum of the weights, of this thread's columns only, until close()
    float factor[2];  // of O, when m has moved
    bool any_large;   // in the warp, see is_large()
    float s[kKeys / 8][4];
    float o[Config::head_dim_vo / 8][4];
    uint32 p[kKeys / 16][4];
    uint32 q[kQueriesInRegisters ? kSteps : 1][4];

    __device__ void run() {
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
        any_large = false;
        if constexpr (Config::alibi) rows.set(work.rows(all, warpgroup, 1), warp_row);
        if constexpr (kQueriesInRegisters) {
            const int32 row = warp_row + lane % 16;
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                const int32 chunk = step * 2 + lane / 16;
                load_matrices(q[step], shared.q(warpgroup) + chunk / 8 * kLayout.q_panel +
                                           row * (abi::kWgmmaPanel * 2) + (chunk ^ row) % 8 * 16);
            }
            fence_async_proxy();  // what was read is overwritten by the copy engine
            __syncwarp();
            free(shared.q_empty(warpgroup));
        }
    }

    __device__ void go_through(const Work& work) {
        const KeyBlocks<Config> of(work.keys);
        // Blocks plain_first ... plain_end - 1 need no mask.
        const int32 plain_first = (work.keys.seen_by_all + kKeys - 1) / kKeys;
        const int32 plain_end = work.keys.seen_until / kKeys;
        wait_k(0);
        multiply_queries(0);
        wgmma_wait<0>();
        pin(s);
        pin(o);
        for (int32 n = of.end - 1;; --n) {
            wgmma_wait<1>();  // S; the product with V goes on
            pin(s);
            free(shared.k_empty(slot(0)));
            const bool more = n > of.first;
            if (more) {
                wait_k(1);
            } else if (!kQueriesInRegisters) {
                free(shared.q_empty(warpgroup));
            }
            const bool moved = take_logits(work, n, n < plain_first || n >= plain_end);
            wgmma_wait<0>();
            pin(o);
            if (n < of.end - 1) free(shared.v_empty(slot(-1)));
            if (moved) scale_output();
            pack();
            if (!more) break;
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
    // from the logits first.
    __device__ bool is_large(int i) const {
        constexpr float kLarge = 8192.0f;  // rounded by 2^-11: the largest weight is 1 in 16 bits
        return m[i] > kNothing && fabsf(m[i] * all.attention.scale_log2) > kLarge;
    }
    __device__ float reference(int i) const {
        return is_large(i) ? 0.0f : fmaxf(m[i] * all.attention.scale_log2, kNothing);
    }
    // c m, less what the weights' exponents are relative to.
    __device__ float excess(int i) const {
        return is_large(i) || m[i] == kNothing ? 0.0f : fmaf(m[i], all.attention.scale_log2, -reference(i));
    }

    // Makes weights of the logits. Whether O has to be multiplied by `factor`: m follows the maximum only
    // when a logit exceeds it by `slack`, so that in most blocks nobody waits for a maximum over lanes.
    __device__ bool take_logits(const Work& work, int32 n, bool masked) {
        const float c = all.attention.scale_log2;
        rows.adjust(s, all.attention, n * kKeys);
        if (masked) {
            if constexpr (!Config::alibi) rows.set(work.rows(all, warpgroup, 1), warp_row);  // not kept
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
        }
        const float slack = all.slack;
        const bool moved = __any_sync(0xffffffffu, top[0][0] - m[0] > slack || top[1][0] - m[1] > slack);
        if (moved) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float next = row_max(top[i][0]);
                factor[i] = 1.0f;
                if (next - m[i] > slack) {
                    const float before = m[i], excess_before = excess(i);
                    m[i] = next;
                    factor[i] = exp2_approx(fmaf(before - next, c, excess(i) - excess_before));
                    l[i] *= factor[i];
                }
            }
        }
        if (moved) any_large = __any_sync(0xffffffffu, is_large(0) || is_large(1));
        if (any_large) {
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
        const float negative[2] = {-reference(0), -reference(1)};
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s[j][i] = exp2_approx(fmaf(s[j][i], c, negative[i / 2]));
                l[i / 2] += s[j][i];
            }
        }
        pin(s);
        // Never: but ptxas, which does not know, cannot move weights over a branch that depends on their sum,
        // to behind the wait for O.
        if (l[0] + l[1] < 0.0f) asm volatile("nanosleep.u32 20;" ::: "memory");
        return moved;
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
            row[i] = tile.row(warp_row + lane / 4 + 8 * i);
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
        prefetch_map(args.k);
        prefetch_map(args.v);
    }
    __syncthreads();
    // The same over a warp, and known to be.
    const int32 warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (warp < 4) {
        set_registers_down<Config::producer_registers>();
        if (warp == 0) WgmmaScheduler<Config>{args, shared}.run();
        if (warp == 1) WgmmaProducer<Config>{args, shared}.run();
    } else {
        set_registers_up<Config::consumer_registers>();
        WgmmaConsumer<Config>{args, shared, warp / 4 - 1}.run();
    }
}

}  // namespace attnsmith
