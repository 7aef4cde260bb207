// The role of a persistent CTA that widens keys and values of 8 bits to what the tensor core multiplies.
#pragma once

#include "attention/persistent/pipeline.cuh"
#include "attention/stored_keys.cuh"
#include "common/barrier.cuh"

namespace attnsmith {

// Widens `Rows` rows of a tile from shared memory to shared memory: warp `warp` of `Warps` each so-many-th
// eight of them. The copy engine brings such a tile as it brings any other, and what is in flight has 8 bits.
//
//   A lane has 16 columns at a time: one chunk of 16 bytes of the stored row, and two of the widened one. So
//   four lanes make a row of one widened panel. Of the eight lanes whose chunks shared memory takes at once
//   four have row r of eight and four row r ^ 5: swizzled, their stored chunks differ by r's bit of weight 4,
//   and their widened ones, of which either four are even or odd, by that of weight 1.
//
//   Panels go in their order, and a row's chunks are loaded before they are stored: so a tile may lie in the
//   last of the panels that it spreads to.
template <class Stored, int Rows, int Warps>
struct TileWidener {
    using Tile = PanelTile<Rows>;
    static constexpr uint32 kPanel = Tile::kPanel;
    static constexpr int kLanesOfRow = 4;
    static constexpr int kEights = Rows / 8 / Warps;               // rows of a warp
    static constexpr uint32 kStep = Warps * 8 * abi::kPanelBytes;  // to the next eight
    static_assert(sizeof(Stored) == 1 && Rows % (8 * Warps) == 0);

    const int32 warp;
    const int32 lane = threadIdx.x % 32;

    // A lane's row of each eight, and its chunk of a panel of widened rows.
    __device__ uint32 row() const {
        const uint32 pair = lane / 8;
        return lane / kLanesOfRow % 2 == 0 ? pair : pair ^ 5;
    }
    __device__ uint32 chunk() const { return lane % kLanesOfRow; }
    // From a tile's first byte to the lane's first row.
    __device__ uint32 first_row() const { return (warp * 8 + row()) * abi::kPanelBytes; }
    // To the widened chunks of it, from there on.
    __device__ uint32 half(int i) const { return swizzled_chunk<8>(row(), 2 * chunk() + i) * 16; }

    // So many widened panels, to `to` and those behind it. What they are made of begins in the panel at
    // `from`: of an odd first panel, which is alone then, in its second half. What the last one has beyond
    // the head dim is zero in the stored row, too.
    template <int Panels>
    __device__ void widen(const Tile& from, const Tile& to, uint32 is_odd = 0) const {
        constexpr int kMine = Panels * kEights;  // chunks of a lane
        // One warp that loads as well has few registers.
        constexpr int kMost = Warps == 1 ? 2 : 4;
        constexpr int kAtOnce = kMine % kMost == 0 ? kMost : kMine % 3 == 0 ? 3 : kMine % 2 == 0 ? 2 : 1;
        constexpr int kBatches = kMine / kAtOnce;
        using Batch = uint32[kAtOnce][4];
        // Widened panels come by turns from the first half of a stored panel and from the second.
        constexpr uint32 kHalf = kLanesOfRow * 16;
        const uint32 source = from.start.value + first_row() + swizzled_chunk<8>(row(), chunk()) * 16;
        const SharedAddress sources[2] = {{source ^ is_odd * kHalf}, {source ^ (is_odd ^ 1) * kHalf}};
        const SharedAddress targets[2] = {to.start + (first_row() + half(0)),
                                          to.start + (first_row() + half(1))};
        const auto load = [&](int batch, Batch& x) {
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const int panel = (batch * kAtOnce + i) / kEights, eight = (batch * kAtOnce + i) % kEights;
                load_shared_16_bytes(x[i], sources[panel % 2] + (panel / 2 * kPanel + eight * kStep));
            }
        };
        const auto store = [&](int batch, const Batch& x) {
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const int panel = (batch * kAtOnce + i) / kEights, eight = (batch * kAtOnce + i) % kEights;
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    store_eight(targets[half] + (panel * kPanel + eight * kStep), x[i][2 * half],
                                x[i][2 * half + 1]);
            }
        };
        // What comes next is on its way while a batch is widened.
        Batch x[2];
        load(0, x[0]);
#pragma unroll
        for (int batch = 0; batch < kBatches; ++batch) {
            if (batch + 1 < kBatches) load(batch + 1, x[(batch + 1) % 2]);
            __syncwarp();  // in place, all lanes have loaded what one stores over
            store(batch, x[batch % 2]);
        }
    }

    // Clears, in `Panels` panels, rows before `first` and from `end` on that this lane has widened a part of.
    template <int Panels>
    __device__ void clear_rows(int32 first, int32 end, const Tile& to) const {
        if (first <= 0 && end >= Rows) return;
#pragma unroll 1
        for (int32 eight = 0; eight < kEights; ++eight) {
            const int32 in_tile = (eight * Warps + warp) * 8 + int32(row());
            if (in_tile >= first && in_tile < end) continue;
#pragma unroll 1
            for (int32 panel = 0; panel < Panels; ++panel) {
                const SharedAddress at = to.start + (first_row() + panel * kPanel + eight * kStep);
                clear_shared_16_bytes(at + half(0));
                clear_shared_16_bytes(at + half(1));
            }
        }
    }

    // Eight columns, as one chunk.
    static __device__ void store_eight(SharedAddress to, uint32 low, uint32 high) {
        uint32 a[2], b[2];
        Stored::widen(a, low);
        Stored::widen(b, high);
        const uint32 widened[4] = {a[0], a[1], b[0], b[1]};
        store_shared_16_bytes(to, widened);
    }
};

// Two warps widen K, and two V, each from a ring of tiles as they are stored to one as they are multiplied.
template <class Config, bool Values>
struct KeyDequantizer {
    using Pipeline = PersistentPipeline<Config>;
    using StoredPosition = typename Pipeline::StoredRing::Position;
    using Position = typename Pipeline::KeyRing::Position;
    using Widener = TileWidener<typename Config::KeyValue, Config::tile_kv, abi::kDequantWarps>;
    static constexpr int kKeys = Config::tile_kv;
    static constexpr int kPanels = LoadedColumns<Config, Values>::kWidenedPanels;

    const Pipeline& pipeline;
    const Widener tile;

    __device__ KeyDequantizer(const Pipeline& shared, int32 warp) : pipeline(shared), tile{warp} {}

    __device__ void run() const {
        uint32 blocks = 0;
        pipeline.load_each([&](const WorkTile& work, uint32) {
#pragma unroll 1
            for (BlockCursor<Config> keys(work.blocks); keys.has_block(); keys.advance(), ++blocks)
                widen(work, keys.block, StoredPosition(blocks), Position(blocks));
        });
    }

    __device__ void widen(const WorkTile& work, int32 n, const StoredPosition& from,
                          const Position& to) const {
        const auto stored = pipeline.template stored_ring<Values>();
        const auto widened = Values ? pipeline.values() : pipeline.keys();
        const typename Pipeline::KeyTile target = Values ? pipeline.v(to.stage) : pipeline.k(to.stage);
        stored.wait_full(from);
        widened.wait_empty(to);
        tile.template widen<kPanels>(pipeline.template stored<Values>(from.stage), target);
        if constexpr (Values)
            tile.template clear_rows<kPanels>(work.mask.read.first - n * kKeys,
                                              work.mask.read.end - n * kKeys, target);
        fence_async_proxy();
        __syncwarp();
        if (Config::gather || tile.lane == 0) stored.empty(from.stage).arrive();
        if (tile.lane == 0) widened.full(to.stage).arrive();
    }
};

}  // namespace attnsmith
