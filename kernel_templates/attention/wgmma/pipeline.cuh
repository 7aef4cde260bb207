// What the roles of a wgmma CTA share: shared memory, the barriers in it, and the work at hand.
//
//   BARRIERS. abi::wgmma_barriers() has their numbers and arrivals, from which their places and the room that
//   they take follow. C: consumer warpgroups, S: Config::stages. A warp arrives by one lane, but at `rows`
//   and at work_empty, where each lane does.
//
//     kind        number  arrivals that complete a phase         who waits             a phase for each
//     work_full   2       1: scheduler                           loaders, consumers    work tile, ring of 2
//     work_empty  2       4 C + 3 warps: consumers and loaders   scheduler             work tile, ring of 2
//     next_tile   1       1: K loader, after the tile's last K   scheduler             work tile
//     q_full      C       1: Q loader, and the bytes             its warpgroup         work tile
//     q_empty     C       4: warps of its warpgroup              Q loader              work tile
//     k_full      S       1: K loader, and the bytes             consumers             block, ring of S
//     k_empty     S       4 C: consumer warps                    K loader              block, ring of S
//     v_full      S       1: V loader, and the bytes             consumers             block, ring of S
//     v_empty     S       4 C: consumer warps                    V loader              block, ring of S
//     clearing_v  1       1: V loader, and the bytes             V loader              block to clear
//
//   Keys of 8 bits (attention/wgmma/widener.cuh) come to rings of their own, and those above, of two stages,
//   are filled by the warps that widen them, which give work tiles back, too:
//
//     stored_k_full, stored_v_full    S  1: K, or V loader, and the bytes  widening warps  block, ring of S
//     stored_k_empty, stored_v_empty  S  2: widening warps                 K, or V loader  block, ring of S
//     k_full, v_full                  2  2: widening warps                 consumers       block, ring of 2
//     work_empty                      2  4 C + 7 warps                     scheduler       work, ring of 2
//
//   Where keys are gathered all 32 lanes arrive at stored_..., each for what it has copied, or read. Rows of
//   V that no row of the tile sees are cleared by who widens them.
//
//   Latents of 8 bits leave no room for such rings: the K and the V loader widen a block in its place when
//   its bytes have landed at `clearing`, and hand it over piece by piece.
//
//   Wide kernels (attention/wgmma/wide_consumers.cuh) have K and V in P pieces each. With latents these are
//   the halves of their columns, and V has the position's columns, whose place the weights take: these are
//   done with when both last pieces are. Else weights have a ring of two of their own:
//
//     k_full, v_full  S P  1, as above                           warps that multiply   piece, ring of S
//     k_empty     S P     4: warps that make weights, or with    K, and V loader       piece, ring of S
//                         latents those with these columns of O
//     v_empty     S P     4: warps with these columns of O       V loader              piece, ring of S
//     position_full  S    1: V loader, and the bytes             warps with weights    block, ring of S
//     weights_full   S, 2 4: warps that make them                warps with O          block, ring of S, 2
//     weights_empty  0, 2 256: threads with O                    warps with weights    block, ring of 2
//     rows        2       128: threads that make weights         warps with O          work tile, ring of 2
//     clearing_k  1       P: K loader, and the bytes             K loader              block to clear
//     clearing_v  1       P, and the position: V loader, ...     V loader              block to clear
//
//   A consumer arrives at k_empty and v_empty of every block of the tile, also of those that only other
//   warpgroups attend to. Where the V loader clears rows, the bytes land at `clearing`, and its own arrival
//   alone completes v_full. Gathered keys land without bytes: cp.async, then an arrival.
//
//   REGISTERS a thread. A CTA is launched with what an SM has for its threads, in equal parts, and setmaxnreg
//   hands them over. Together no more than at launch: the consumers would wait for ever
//   (runtime/families/attention_wgmma/candidates.cpp).
//
//     warpgroups that consume   at launch   a producer   a consumer: O, S, P, and Q where there is room
//     2                         168         40           232
//     3                         128         32           160
//     3, with cuts              128         40           152
//     3, in wide kernels        128         56           176 with columns of O, 104 with the weights
//     3, where loaders widen    128         72           168 with columns of O, 104 with the weights
//     2, and one that widens    128         40           208, and 56 of the one that widens
//     1, and one that widens    168         56           240, and 80 of the one that widens
//
//   The producers have none to spare: what the scheduler finds goes to shared memory at once, and each role
//   reads it from there again.
//
//   TIME of one CTA, two work tiles A and B of n blocks each, keys from the last block to the first:
//
//     scheduler  draw A, publish │ wait next_tile ........... │ draw B, publish │ wait next_tile ...
//     Q loader     Q(A)                                         wait q_empty │ Q(B)
//     K loader     K(n-1) K(n-2) │ wait k_empty │ K(n-3) ... K(0), next_tile │ K(n-1) of B ...
//     V loader     V(n-1) V(n-2) │ wait v_empty │ V(n-3) ... V(0)            │ V(n-1) of B ...
//     consumer        S(n-1) │ softmax │ S(n-2)            │ softmax  │ ... │ O += P V(0) │ epilogue of A │
//                            │         │ O += P V(n-1) ... │ in its shade   │
//
//   So K and V of B are on their way while A's last products and its stores are not done, and B is drawn only
//   when A's last keys are asked for: a tile that is drawn early is one that an idle CTA cannot take.
#pragma once

#include "abi/attention_wgmma.h"
#include "attention/cuts.cuh"
#include "attention/shares.cuh"
#include "common/barrier.cuh"
#include "common/fragment.cuh"

namespace attnsmith {

// What a consumer warpgroup does of a tile's blocks.
struct WarpgroupBlocks {
    KeyInterval attended;  // those that its rows see, maybe none
    KeyInterval unmasked;  // those that need no mask
};

// Warpgroups that have rows of their own.
template <class Config>
inline constexpr int32 kRowGroups = abi::wgmma_row_groups(Config::shape);

// Packed query rows of a tile: whole tokens, in each warpgroup's.
template <class Config>
__device__ int32 tile_rows(const abi::WgmmaArguments& args) {
    return kRowGroups<Config> * args.warpgroup_tokens * args.attention.group;
}

// What a CTA does next: the scheduler finds it, the others read it.
struct WorkTile {
    WarpgroupBlocks warpgroup[abi::kWgmmaConsumers];
    Sequence sequence;
    TileMask mask;
    KeyInterval blocks;  // of keys that are loaded; end < 0: there is no work, the CTA is done
    int32 first_token;
    int32 stored_head;  // of k and v
    QueryHeads heads;
    int32 split;        // of which the blocks are, where the host divides keys
    TilePart part;      // and what is done of them
    TileParts parts;    // where the part is not the whole tile
    PartPlaces places;  // with absolute cuts

    // `head`: as the arguments count them, where parts of a group have one each.
    __device__ void set_head(const abi::WgmmaArguments& args, int32 head) {
        const int32 group = args.attention.group, parts = args.kv_head_shares;
        stored_head = parts == 1 ? head : head / parts;
        const int32 before = (head - stored_head * parts) * group;  // heads of the parts before it
        heads = {stored_head * args.whole_group + before, min(group, args.whole_group - before)};
    }
    __device__ bool is_last() const { return blocks.end < 0; }
    // The rows of consumer warpgroups first ... first + count - 1.
    __device__ GroupPartTile rows(const abi::WgmmaArguments& args, int32 first, int32 count) const {
        const int32 group = args.attention.group, each = args.warpgroup_tokens * group;
        return {{args.attention, sequence, stored_head, first_token * group + first * each, count * each},
                heads};
    }
};
static_assert(sizeof(WorkTile) <= abi::kWgmmaWorkBytes && abi::kWgmmaWorkBytes % 16 == 0);

// The columns that the K loader, or the V loader, brings of each key. Latents are divided between the two,
// since one warp would take too long, and the V loader brings the position's columns as well.
template <class Config, bool Values>
struct LoadedColumns {
    static constexpr int kPieces = abi::wgmma_pieces(Config::shape, Values);
    static constexpr int kHeadDim = Config::latent ? Config::head_dim_vo / 2
                                    : Values       ? Config::head_dim_vo
                                                   : Config::head_dim_qk;
    static constexpr bool kHasPosition = Config::latent && Values && Config::head_dim_qk > 0;
    static constexpr int kPanels = abi::wgmma_panels(kHeadDim, sizeof(typename Config::KeyValue));
    // As they are multiplied.
    static constexpr int kWidenedPanels = abi::wgmma_panels(kHeadDim, abi::kWgmmaOperandBytes);
};

// A thread's two rows of an accumulator: which of its warpgroup's they are is the same in every tile.
struct ThreadRows {
    uint32 tokens_and_heads = 0;  // 8 bits each

    __device__ void set(const abi::WgmmaArguments& args, int32 warp_row) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32 row = warp_row + fragment_row(threadIdx.x % 32, i);
            const uint32 token = row / args.attention.group, head = row - token * args.attention.group;
            tokens_and_heads |= (token | head << 8) << (16 * i);
        }
    }
    // `row_group`: which of the warpgroups that have rows of their own.
    __device__ PackedRow row(const abi::WgmmaArguments& args, const WorkTile& work, int32 row_group,
                             int i) const {
        const int32 in_warpgroup = tokens_and_heads >> (16 * i) & 0xff;
        const int32 head = tokens_and_heads >> (16 * i + 8) & 0xff;
        const int32 token = work.first_token + row_group * args.warpgroup_tokens + in_warpgroup;
        return {
            token, work.heads.first + head,
            in_warpgroup < args.warpgroup_tokens && token < work.sequence.q_len && head < work.heads.count};
    }
};

// The order in which blocks are taken: from the last, so that a causal tile's masked ones come first; with
// absolute cuts from the first, as what is found is folded.
template <class Config>
struct BlockOrder {
    static constexpr int32 kStep = Config::absolute_cuts ? 1 : -1;

    static __device__ int32 first(const KeyInterval& blocks) {
        return Config::absolute_cuts ? blocks.first : blocks.end - 1;
    }
    static __device__ int32 last(const KeyInterval& blocks) {
        return Config::absolute_cuts ? blocks.end - 1 : blocks.first;
    }
    // How many of the tile's come before a warpgroup's own.
    static __device__ int32 before(const KeyInterval& of_tile, const KeyInterval& own) {
        return Config::absolute_cuts ? own.first - of_tile.first : of_tile.end - own.end;
    }
    static __device__ int32 behind(const KeyInterval& of_tile, const KeyInterval& own) {
        return Config::absolute_cuts ? of_tile.end - own.end : own.first - of_tile.first;
    }
};

template <class Config>
struct WgmmaPipeline {
    using Kind = abi::WgmmaBarrier;
    using WorkRing = Ring<abi::kWgmmaWorkStages>;
    using KeyRing = Ring<abi::wgmma_operand_stages(Config::shape)>;
    using StoredRing = Ring<Config::stages>;
    using QueryRing = Ring<1>;
    using WeightRing = Ring<abi::wgmma_weight_stages(Config::shape)>;
    static constexpr abi::WgmmaLayout kLayout = abi::wgmma_layout(Config::shape);
    static_assert(KeyRing::kBarrierBytes == abi::kWgmmaBarrierBytes);

    char* memory;
    SharedAddress base;

    // ---- tiles ----

    __device__ SharedAddress q(uint32 warpgroup) const {
        return base + kLayout.q + warpgroup * (abi::kWgmmaRows * abi::kWgmmaPanelBytes);
    }
    __device__ SharedAddress k(uint32 stage) const { return base + kLayout.k + stage * kLayout.k_stage; }
    __device__ SharedAddress v(uint32 stage) const { return base + kLayout.v + stage * kLayout.v_stage; }
    // Where loaders put a tile of K, or of V. What is widened in its place fills the last panels, from where
    // it spreads from the first on; the position's is behind them before and after.
    template <bool Values>
    __device__ SharedAddress stored(uint32 stage) const {
        if constexpr (abi::wgmma_widens_in_place(Config::shape)) {
            using Loaded = LoadedColumns<Config, Values>;
            return (Values ? v(stage) : k(stage)) +
                   (Loaded::kWidenedPanels - Loaded::kPanels) * kLayout.kv_panel;
        }
        if constexpr (!abi::wgmma_widens(Config::shape)) return Values ? v(stage) : k(stage);
        return base + (Values ? kLayout.stored_v + stage * kLayout.stored_v_stage
                              : kLayout.stored_k + stage * kLayout.stored_k_stage);
    }
    // Where gathered rows of K, of V, or of the position's tensor, are in global memory: one address a key.
    __device__ SharedAddress row_sources(int list) const {
        return base + kLayout.rows + list * (Config::tile_kv * uint32(sizeof(uint64)));
    }
    __device__ WorkTile& work(uint32 stage) const {
        return *reinterpret_cast<WorkTile*>(memory + kLayout.work + stage * abi::kWgmmaWorkBytes);
    }
    __device__ abi::ShareState& share() const {
        return *reinterpret_cast<abi::ShareState*>(memory + kLayout.share);
    }
    // With absolute cuts: O of what rows found before their last cut, and once that is done with the list of
    // pieces that are joined.
    __device__ char* state() const { return memory + kLayout.state; }
    // Latent: where the columns of the position are, and then the weights.
    __device__ SharedAddress position(uint32 stage) const {
        return v(stage) + (kLayout.v_stage - kLayout.kv_panel);
    }
    // Wide: a block's weights, and what is told of its rows, and of a tile's.
    __device__ SharedAddress weights(uint32 stage) const {
        return base + kLayout.weights + stage * kLayout.weights_stage;
    }
    __device__ abi::WgmmaBlockRows& block_rows(uint32 stage) const {
        return reinterpret_cast<abi::WgmmaBlockRows*>(memory + kLayout.row_states)[stage];
    }
    __device__ abi::WgmmaTileRows& tile_rows(uint32 stage) const {
        constexpr int kBlocks = abi::wgmma_weight_stages(Config::shape);
        char* const first = memory + kLayout.row_states + kBlocks * sizeof(abi::WgmmaBlockRows);
        return reinterpret_cast<abi::WgmmaTileRows*>(first)[stage];
    }
    __device__ abi::PackedTiles& sorted(uint32 sequence) const {
        return reinterpret_cast<abi::PackedTiles*>(memory + kLayout.sorted)[sequence];
    }

    // ---- barriers ----

    __device__ Barrier clearing(bool of_values) const {
        return {of_values ? barrier<Kind::clearing_v>() : barrier<Kind::clearing_k>()};
    }
    // Wide: a block's weights are there, and the results of a tile's rows.
    __device__ WeightRing weight_ring() const {
        return ring<WeightRing, Kind::weights_full, Kind::weights_empty>();
    }
    __device__ Barrier rows(uint32 stage) const { return {barrier<Kind::rows>(stage)}; }
    __device__ Barrier next_tile() const { return {barrier<Kind::next_tile>()}; }
    __device__ WorkRing work_ring() const { return ring<WorkRing, Kind::work_full, Kind::work_empty>(); }
    // Each piece has a ring of its own.
    __device__ KeyRing keys(int32 piece = 0) const {
        return ring<KeyRing, Kind::k_full, Kind::k_empty>(piece * kStages);
    }
    __device__ KeyRing values(int32 piece = 0) const {
        return ring<KeyRing, Kind::v_full, Kind::v_empty>(piece * kStages);
    }
    // That loaders fill.
    template <bool Values>
    __device__ StoredRing stored_ring(int32 piece = 0) const {
        if constexpr (!abi::wgmma_has_stored_ring(Config::shape))
            return Values ? values(piece) : keys(piece);
        else if constexpr (Values)
            return ring<StoredRing, Kind::stored_v_full, Kind::stored_v_empty>();
        else
            return ring<StoredRing, Kind::stored_k_full, Kind::stored_k_empty>();
    }
    __device__ Barrier position_full(uint32 stage) const { return {barrier<Kind::position_full>(stage)}; }
    // One warpgroup's queries: it has a barrier of either kind to itself.
    __device__ QueryRing queries(uint32 warpgroup) const {
        return ring<QueryRing, Kind::q_full, Kind::q_empty>(warpgroup);
    }

    // By one thread, before the roles part.
    __device__ void init() const {
        init_from<Kind(0)>();
        fence_barrier_init();
    }

    // ---- work ----

    // By one lane: the work is there to be taken, or there is none any more.
    __device__ void publish(uint32 works, bool is_last) const {
        const uint32 stage = WorkRing::Position(works).stage;
        if (is_last) work(stage).blocks.end = -1;
        work_ring().full(stage).arrive();
    }
    // The next work; null where there is none. Whoever has read it gives it back: each lane, for it is once a
    // tile, and tools that look for races follow what a thread arrives for, not what its warp does.
    __device__ const WorkTile* take(uint32 works) const {
        const WorkRing::Position at(works);
        work_ring().wait_full(at);
        const WorkTile& next = work(at.stage);
        return next.is_last() ? nullptr : &next;
    }
    __device__ void give_back(uint32 works) const {
        work_ring().empty(WorkRing::Position(works).stage).arrive();
    }
    // By a loader's warp: load(work, works) for each.
    template <class Load>
    __device__ void load_each(const Load& load) const {
#pragma unroll 1
        for (uint32 works = 0; const WorkTile* work = take(works); ++works) {
            load(*work, works);
            give_back(works);
            __syncwarp();
        }
    }

  private:
    static constexpr int32 kStages = abi::wgmma_operand_stages(Config::shape);

    template <Kind kind>
    __device__ SharedAddress barrier(uint32 i = 0) const {
        constexpr int32 kBefore = abi::wgmma_barriers_before(Config::shape, kind);
        return base + kLayout.barriers + (kBefore + i) * abi::kWgmmaBarrierBytes;
    }
    // The ring whose first stage has the kinds' barriers number `first`.
    template <class Ring, Kind full, Kind empty>
    __device__ Ring ring(uint32 first = 0) const {
        return {barrier<full>(first), barrier<empty>(first)};
    }
    template <Kind kind>
    __device__ void init_from() const {
        if constexpr (kind != Kind::kinds) {
            constexpr abi::WgmmaBarriers kBarriers = abi::wgmma_barriers(Config::shape, kind);
            for (int32 i = 0; i < kBarriers.count; ++i) {
                Barrier{barrier<kind>(i)}.init(kBarriers.arrivals);
            }
            init_from<Kind(int32(kind) + 1)>();
        }
    }
};

}  // namespace attnsmith
