// What the roles of a persistent CTA share: shared memory, the barriers in it, and the work at hand.
//
//   Barriers: abi::persistent_barriers() says of each kind how many there are, who arrives and who waits;
//   their places and the room that they take follow from it. A consumer gives back every block of the tile,
//   also one that other warpgroups alone attend to.
//
//   Registers: a CTA is launched with what an SM has for its threads, in equal parts, and setmaxnreg hands
//   them over. RoleRegisters (runtime/families/attention_wgmma/budget.hpp) has those of each role. The
//   producers have none to spare: what the scheduler finds goes to shared memory at once, and each role reads
//   it from there again.
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

#include "abi/attention_persistent.h"
#include "attention/block_cursor.cuh"
#include "attention/cuts.cuh"
#include "attention/operand_stage.cuh"
#include "attention/persistent/columns.cuh"
#include "attention/shares.cuh"
#include "common/barrier.cuh"
#include "common/fragment.cuh"
#include "common/panel_tile.cuh"

namespace attnsmith {

// Warpgroups that have rows of their own.
template <class Config>
inline constexpr int32 kRowGroups = abi::row_groups(Config::shape);

// Packed query rows of a tile: whole tokens, in each warpgroup's.
template <class Config>
__device__ int32 tile_rows(const abi::PersistentArguments& args) {
    return kRowGroups<Config> * args.warpgroup_tokens * args.attention.group;
}

// What a CTA does next: the scheduler finds it, the others read it.
struct WorkTile {
    WarpgroupBlocks warpgroup[abi::kMostConsumers];
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
    __device__ void set_head(const abi::PersistentArguments& args, int32 head) {
        const int32 group = args.attention.group, parts = args.kv_head_shares;
        stored_head = parts == 1 ? head : head / parts;
        const int32 before = (head - stored_head * parts) * group;  // heads of the parts before it
        heads = {stored_head * args.whole_group + before, min(group, args.whole_group - before)};
    }
    __device__ bool is_last() const { return blocks.end < 0; }
    // The rows of consumer warpgroups first ... first + count - 1.
    __device__ GroupPartTile rows(const abi::PersistentArguments& args, int32 first, int32 count) const {
        const int32 group = args.attention.group, each = args.warpgroup_tokens * group;
        return {{args.attention, sequence, stored_head, first_token * group + first * each, count * each},
                heads};
    }
};
static_assert(sizeof(WorkTile) <= abi::kWorkBytes && abi::kWorkBytes % 16 == 0);

// A thread's two rows of an accumulator: which of its warpgroup's they are is the same in every tile.
struct ThreadRows {
    uint32 tokens_and_heads = 0;  // 8 bits each

    __device__ void set(const abi::PersistentArguments& args, int32 warp_row) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32 row = warp_row + fragment_row(threadIdx.x % 32, i);
            const uint32 token = row / args.attention.group, head = row - token * args.attention.group;
            tokens_and_heads |= (token | head << 8) << (16 * i);
        }
    }
    // `row_group`: which of the warpgroups that have rows of their own.
    __device__ PackedRow row(const abi::PersistentArguments& args, const WorkTile& work, int32 row_group,
                             int i) const {
        const int32 in_warpgroup = tokens_and_heads >> (16 * i) & 0xff;
        const int32 head = tokens_and_heads >> (16 * i + 8) & 0xff;
        const int32 token = work.first_token + row_group * args.warpgroup_tokens + in_warpgroup;
        return {
            token, work.heads.first + head,
            in_warpgroup < args.warpgroup_tokens && token < work.sequence.q_len && head < work.heads.count};
    }
};

template <class Config>
struct PersistentPipeline {
    using Stage = StageOf<Config>;
    using Kind = abi::PersistentBarrier;
    using WorkRing = Ring<abi::kWorkStages>;
    using KeyRing = Ring<abi::operand_stages(Config::shape)>;
    using StoredRing = Ring<Config::stages>;
    using QueryRing = Ring<1>;
    using QueryTile = PanelTile<Config::tile_q>;
    using KeyTile = PanelTile<Config::tile_kv>;  // of K, of V, or of both as they are stored
    using WeightTile = PanelTile<abi::kWgmmaRows>;
    using WeightRing = Ring<abi::weight_stages(Config::shape)>;
    static constexpr abi::PersistentLayout kLayout = abi::persistent_layout(Config::shape);
    static_assert(KeyRing::kBarrierBytes == abi::kBarrierBytes);

    char* memory;
    SharedAddress base;

    // ---- tiles ----

    // A warpgroup's rows of the tile.
    __device__ QueryTile q(uint32 warpgroup) const {
        return {base + kLayout.q + warpgroup * (abi::kWgmmaRows * abi::kPanelBytes)};
    }
    __device__ KeyTile k(uint32 stage) const { return {base + kLayout.k + stage * kLayout.k_stage}; }
    __device__ KeyTile v(uint32 stage) const { return {base + kLayout.v + stage * kLayout.v_stage}; }
    // Where loaders put a tile of K, or of V. What is widened in its place fills the last panels, from where
    // it spreads from the first on; the position's is behind them before and after.
    template <bool Values>
    __device__ KeyTile stored(uint32 stage) const {
        if constexpr (is_same<Stage, DequantInPlace>) {
            using Loaded = LoadedColumns<Config, Values>;
            return (Values ? v(stage) : k(stage)).panel(Loaded::kWidenedPanels - Loaded::kPanels);
        }
        if constexpr (!is_same<Stage, DequantRing>) return Values ? v(stage) : k(stage);
        return {base + (Values ? kLayout.stored_v + stage * kLayout.stored_v_stage
                               : kLayout.stored_k + stage * kLayout.stored_k_stage)};
    }
    // Where gathered rows of K, of V, or of the position's tensor, are in global memory: one address a key.
    __device__ SharedAddress row_sources(int list) const {
        return base + kLayout.rows + list * (Config::tile_kv * uint32(sizeof(uint64)));
    }
    __device__ WorkTile& work(uint32 stage) const {
        return *reinterpret_cast<WorkTile*>(memory + kLayout.work + stage * abi::kWorkBytes);
    }
    __device__ abi::ShareState& share() const {
        return *reinterpret_cast<abi::ShareState*>(memory + kLayout.share);
    }
    // With absolute cuts: O of what rows found before their last cut, and once that is done with the list of
    // pieces that are joined.
    __device__ char* state() const { return memory + kLayout.state; }
    // Latent: where the columns of the position are, and then the weights.
    __device__ KeyTile position(uint32 stage) const {
        return {v(stage).start + (kLayout.v_stage - KeyTile::kPanel)};
    }
    // Wide: a block's weights, and what is told of its rows, and of a tile's.
    __device__ WeightTile weights(uint32 stage) const {
        return {base + kLayout.weights + stage * kLayout.weights_stage};
    }
    __device__ abi::RowRescales& block_rows(uint32 stage) const {
        return reinterpret_cast<abi::RowRescales*>(memory + kLayout.row_states)[stage];
    }
    __device__ abi::RowStates& tile_rows(uint32 stage) const {
        constexpr int kBlocks = abi::weight_stages(Config::shape);
        char* const first = memory + kLayout.row_states + kBlocks * sizeof(abi::RowRescales);
        return reinterpret_cast<abi::RowStates*>(first)[stage];
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
        if constexpr (!is_same<Stage, DequantRing>)
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
    static constexpr int32 kStages = abi::operand_stages(Config::shape);

    template <Kind kind>
    __device__ SharedAddress barrier(uint32 i = 0) const {
        constexpr int32 kBefore = abi::persistent_barriers_before(Config::shape, kind);
        return base + kLayout.barriers + (kBefore + i) * abi::kBarrierBytes;
    }
    // The ring whose first stage has the kinds' barriers number `first`.
    template <class Ring, Kind full, Kind empty>
    __device__ Ring ring(uint32 first = 0) const {
        return {barrier<full>(first), barrier<empty>(first)};
    }
    template <Kind kind>
    __device__ void init_from() const {
        if constexpr (kind != Kind::kinds) {
            constexpr abi::BarrierCount kBarriers = abi::persistent_barriers(Config::shape, kind);
            for (int32 i = 0; i < kBarriers.count; ++i) {
                Barrier{barrier<kind>(i)}.init(kBarriers.arrivals);
            }
            init_from<Kind(int32(kind) + 1)>();
        }
    }
};

}  // namespace attnsmith
