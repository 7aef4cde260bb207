// The roles of a persistent CTA that bring data: a warp each for Q, K and V.
#pragma once

#include "attention/persistent/dequantizer.cuh"
#include "attention/persistent/gather.cuh"
#include "attention/persistent/pipeline.cuh"
#include "attention/stored_keys.cuh"
#include "common/tma.cuh"

namespace attnsmith {

template <class Config>
struct QueryLoader {
    using Pipeline = PersistentPipeline<Config>;
    using Panels = QueryPanels<Config>;

    const abi::PersistentArguments& args;
    const Pipeline& pipeline;
    const int32 lane = threadIdx.x % 32;

    __device__ void run() const {
        pipeline.load_each([this](const WorkTile& work, uint32 works) { load(work, works); });
    }

    __device__ void load(const WorkTile& work, uint32 works) const {
        const int32 rows = args.warpgroup_tokens * args.attention.group;
        int32 token = int32(work.sequence.q_first) + work.first_token;
#pragma unroll 1
        for (int32 warpgroup = 0; warpgroup < kRowGroups<Config>; ++warpgroup) {
            const auto queries = pipeline.queries(warpgroup);
            const typename Pipeline::QueryRing::Position at(works);
            const Barrier full = queries.full(at.stage);
            queries.wait_empty(at);
            if (lane == 0) {
                full.expect(Panels::kPanels * rows * abi::kPanelBytes);
#pragma unroll 1
                for (int panel = 0; panel < Panels::kPanels; ++panel) {
                    const PanelColumns columns = Panels::of(args, panel);
                    tma_load(pipeline.q(warpgroup).panel(panel).start, columns.map, full, columns.first,
                             work.heads.first, token, args.attention.q_indptr ? 0 : work.sequence.batch);
                }
            }
            __syncwarp();
            token += args.warpgroup_tokens;
        }
        if constexpr (StageOf<Config>::kIsQuantized) {  // this warp has the least to do
            uint32 status = 0;
            key_scale(args.attention, work.stored_head, status);
            if (lane == 0) report(args.attention, status);
        }
    }
};

// Loads K, or V, block by block; of latents the first half of their columns, or the second and the
// position's. What a block needs to be found is known before there is room for it: every clock between the
// two is one that the consumers may wait for.
template <class Config, bool Values>
struct KeyLoader {
    using PageId = typename Config::Index;
    using Pipeline = PersistentPipeline<Config>;
    using KeyRing = typename Pipeline::StoredRing;
    using KeyTile = typename Pipeline::KeyTile;
    using Gather = RowGather<Config, Values>;
    using Stage = StageOf<Config>;
    static constexpr bool kAhead = is_same<Stage, DequantAhead>;
    static constexpr bool kPaged = Config::paged && !kAhead;
    static constexpr bool kInPlace = is_same<Stage, DequantInPlace>;
    using Loaded = LoadedColumns<Config, Values>;
    static constexpr bool kHasPosition = Loaded::kHasPosition;  // a panel more
    static constexpr int kPieces = Loaded::kPieces;
    static constexpr int kPiecePanels = Loaded::kPanels / kPieces;
    static constexpr int kWidenedPiecePanels = Loaded::kWidenedPanels / kPieces;
    using Widener = TileWidener<typename Config::KeyValue, Config::tile_kv, 1>;
    static constexpr int kPanels = Loaded::kPanels + kHasPosition;
    static constexpr int kKeys = Config::tile_kv;
    static constexpr int kChunks = abi::kPanelBytes / 16;  // of a panel's row

    const abi::PersistentArguments& args;
    const Pipeline& pipeline;
    const int32 lane = threadIdx.x % 32;

    uint32 blocks = 0;  // that have been loaded
    uint32 cleared = 0;
    int32 head = 0, batch = 0, first_token = 0;  // of the tile's keys
    int32 page = -1;                             // of this lane's box of keys; -1: they are to be zero
    int32 slot = 0;                              // of the box in its page

    __device__ KeyTile target(uint32 stage) const { return pipeline.template stored<Values>(stage); }
    __device__ KeyRing ring(int32 piece = 0) const { return pipeline.template stored_ring<Values>(piece); }

    __device__ void run() {
        pipeline.load_each([this](const WorkTile& work, uint32) { load(work); });
    }

    __device__ void load(const WorkTile& work) {
        head = work.stored_head;
        // What was widened ahead is a row of tokens of each sequence.
        batch = args.attention.kv_indptr && !kAhead ? 0 : work.sequence.batch;
        first_token = kAhead ? 0 : int32(work.sequence.kv_first);
        look_up(work, first_block<Config>(work.blocks));
        if constexpr (Config::gather)
            gather(work);
        else if constexpr (kInPlace)
            copy_and_widen(work);
        else
            copy(work);
    }

    // Asks behind the keys that are loaded last. Not before: a tile that is drawn
    // early is one that a CTA which ends sooner cannot take.
    __device__ void ask_for_next_tile() const {
        if (!Values && lane == 0) pipeline.next_tile().arrive();
    }

    __device__ void copy(const WorkTile& work) {
#pragma unroll 1
        for (BlockCursor<Config> keys(work.blocks); keys.has_block(); keys.advance(), ++blocks) {
            const typename KeyRing::Position at(blocks);
            // Who widens a row clears it, too.
            const bool clear =
                Loaded::kAreValues && !Stage::kDequantizes && has_unseen_rows(work, keys.block);
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece) {
                const Barrier landing = clear ? pipeline.clearing(Values) : ring(piece).full(at.stage);
                ring(piece).wait_empty(at);
                copy_panels<kPiecePanels>(piece * kPiecePanels, target(at.stage), landing, keys.block);
            }
            if constexpr (kHasPosition) {
                const Barrier landing = clear ? pipeline.clearing(Values) : pipeline.position_full(at.stage);
                // The weights take its place, which both halves of O are made of.
                pipeline.keys(kPieces - 1).wait_empty(at);
                copy_panels<1>(kPanels - 1, target(at.stage), landing, keys.block);
            }
            if (!keys.is_last())
                look_up(work, keys.next());
            else
                ask_for_next_tile();
            if (!clear) continue;
            clear_unseen_rows(work, keys.block, target(at.stage));
            hand_over(at.stage);
        }
    }

    // A block is widened in its place as soon as it has landed, while the one before it is multiplied.
    __device__ void copy_and_widen(const WorkTile& work) {
#pragma unroll 1
        for (BlockCursor<Config> keys(work.blocks); keys.has_block(); keys.advance(), ++blocks) {
            const typename KeyRing::Position at(blocks);
            const Barrier landing = pipeline.clearing(Values);
            await_room(at);
            copy_panels<Loaded::kPanels>(0, target(at.stage), landing, keys.block);
            if constexpr (kHasPosition) copy_panels<1>(kPanels - 1, target(at.stage), landing, keys.block);
            if (!keys.is_last())
                look_up(work, keys.next());
            else
                ask_for_next_tile();
            landing.wait(Phase::of_use(cleared++));
            widen(work, keys.block, at.stage);
        }
    }

    // All that there is in a stage is done with.
    __device__ void await_room(const typename KeyRing::Position& at) const {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) ring(piece).wait_empty(at);
        // The weights take the position's place, which both halves of O are made of.
        if constexpr (kHasPosition) pipeline.keys(kPieces - 1).wait_empty(at);
    }

    // Piece by piece, each of which is handed over when it is done.
    __device__ void widen(const WorkTile& work, int32 n, uint32 stage) const {
        const int32 first = work.mask.read.first - n * kKeys, end = work.mask.read.end - n * kKeys;
        const Widener widener{0};
        KeyTile to = Values ? pipeline.v(stage) : pipeline.k(stage);
#pragma unroll 1
        for (int32 piece = 0; piece < kPieces; ++piece) {
            const uint32 panel = piece * kWidenedPiecePanels;
            widener.template widen<kWidenedPiecePanels>(target(stage).panel(panel / 2), to, panel % 2);
            widener.template clear_rows<kWidenedPiecePanels>(first, end, to);
            publish(ring(piece).full(stage));
            to = to.panel(kWidenedPiecePanels);
        }
        if constexpr (kHasPosition) {
            widener.template widen<1>(to, to);
            publish(pipeline.position_full(stage));
        }
    }
    // What this warp's lanes have written is there.
    __device__ void publish(Barrier full) const {
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) full.arrive();
    }

    // While the rows of a block are under way, those of the next one are found.
    __device__ void gather(const WorkTile& work) {
#pragma unroll 1
        for (BlockCursor<Config> keys(work.blocks); keys.has_block(); keys.advance(), ++blocks) {
            const typename KeyRing::Position at(blocks);
            await_room(at);
            Gather{args, pipeline}.copy_rows(target(at.stage));
            __syncwarp();
            copy_commit();
            if (!keys.is_last())
                look_up(work, keys.next());
            else
                ask_for_next_tile();
            copy_wait<0>();
            if constexpr (kInPlace) {
                __syncwarp();  // lanes read what others have copied
                widen(work, keys.block, at.stage);
            } else {
                hand_over(at.stage);
            }
        }
    }

    // What this warp's lanes have written to a stage.
    __device__ void hand_over(uint32 stage) const {
        if constexpr (is_same<Stage, DequantRing>) {  // each lane for what it has copied
            ring().full(stage).arrive();
            return;
        }
        fence_async_proxy();
        __syncwarp();
        if (lane != 0) return;
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) ring(piece).full(stage).arrive();
        if constexpr (kHasPosition) pipeline.position_full(stage).arrive();
    }

    // Whether block n has rows that no row of the tile sees, and that the copy engine does not make zeros as
    // it does outside of a tensor. (One without tokens has a map of something else.)
    __device__ bool has_unseen_rows(const WorkTile& work, int32 n) const {
        const KeyInterval& read = work.mask.read;
        const int64 tokens = kAhead ? args.attention.max_kv_len : args.attention.kv_tokens;
        const bool ends_here = !kPaged && tokens > 0 && first_token + read.end >= tokens;
        return read.first > n * kKeys || (read.end < (n + 1) * kKeys && !ends_here);
    }

    __device__ void clear_unseen_rows(const WorkTile& work, int32 n, const KeyTile& target) {
        pipeline.clearing(Values).wait(Phase::of_use(cleared++));
        clear_rows(target, 0, work.mask.read.first - n * kKeys);
        clear_rows(target, work.mask.read.end - n * kKeys, kKeys);
    }

    __device__ void clear_rows(const KeyTile& target, int32 begin, int32 end) const {
#pragma unroll 1
        for (int32 panel = 0; panel < kPanels; ++panel) {
#pragma unroll 1
            for (int32 i = begin * kChunks + lane; i < end * kChunks; i += 32)
                clear_shared_16_bytes(target.panel(panel).start + i * 16);
        }
    }

    // What copying block n needs to know.
    __device__ void look_up(const WorkTile& work, int32 n) {
        if constexpr (Config::gather)
            Gather{args, pipeline}.look_up(work, head, n);
        else if constexpr (kPaged)
            look_up_box(work, n);
    }

    // The page of this lane's box: none where no key is read, and there will be zeros.
    __device__ void look_up_box(const WorkTile& work, int32 n) {
        const int32 box = args.box_keys, key = n * kKeys + lane * box;
        page = -1;
        if (lane * box >= kKeys || key >= work.mask.read.end || key + box <= work.mask.read.first) return;
        const uint32 in_sequence = page_of(args.attention, key);
        slot = key - in_sequence * args.attention.page_size;
        const PageId id = pages_of<PageId>(args.attention, work.sequence)[in_sequence];
        if (has_page(args.attention, id))
            page = int32(id);
        else
            report(args.attention, abi::kStatusPageOutOfRange);
    }

    // So many panels of block n, by the copy engine: a box a panel or, of pages, a box a lane and panel.
    template <int Count>
    __device__ void copy_panels(int first, const KeyTile& target, Barrier landing, int32 n) const {
        if (lane == 0) landing.expect(Count * KeyTile::kPanel);
        __syncwarp();
        if constexpr (kPaged) {
            if (lane * args.box_keys >= kKeys) return;
            const KeyTile rows = target.rows_from(lane * args.box_keys);
#pragma unroll
            for (int panel = first; panel < first + Count; ++panel) {
                const PanelColumns columns = Loaded::of(args, panel);
                tma_load(rows.panel(panel).start, columns.map, landing, columns.first, slot, head, page);
            }
        } else if (lane == 0) {
#pragma unroll
            for (int panel = first; panel < first + Count; ++panel) {
                const PanelColumns columns = Loaded::of(args, panel);
                tma_load(target.panel(panel).start, columns.map, landing, columns.first,
                         first_token + n * kKeys, head, batch);
            }
        }
    }
};

}  // namespace attnsmith
