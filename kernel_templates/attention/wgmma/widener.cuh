// The role of a wgmma CTA that widens keys and values of 8 bits to what the tensor core multiplies.
#pragma once

#include "attention/stored_keys.cuh"
#include "attention/wgmma/pipeline.cuh"
#include "common/barrier.cuh"

namespace attnsmith {

// Two warps widen K, and two V, each every second eight rows of a tile. A tile goes from shared memory to
// shared memory: so the copy engine brings it as it brings any other, and what is in flight has 8 bits.
//
//   A lane has 16 columns at a time: one chunk of 16 bytes of the stored row, and two of the widened one. So
//   four lanes make a row of one widened panel. Of the eight lanes whose chunks shared memory takes at once
//   four have row r of eight and four row r ^ 5: swizzled, their stored chunks differ by r's bit of weight 4,
//   and their widened ones, of which either four are even or odd, by that of weight 1.
template <class Config, bool Values>
struct WgmmaWidener {
    using Pipeline = WgmmaPipeline<Config>;
    using Stored = typename Config::KeyValue;
    using StoredPosition = typename Pipeline::StoredRing::Position;
    using Position = typename Pipeline::KeyRing::Position;
    static constexpr int kKeys = Config::tile_kv;
    static constexpr uint32 kPanel = Pipeline::kLayout.kv_panel;
    static constexpr int kLanesOfRow = 4;
    // A widened row has so many. What the last has beyond the head dim is zero in the stored row, too.
    static constexpr int kPanels =
        abi::wgmma_panels(LoadedColumns<Config, Values>::kHeadDim, abi::kWgmmaOperandBytes);
    static constexpr int kEights = Config::tile_kv / 8 / abi::kWgmmaWidenerWarps;         // rows of a warp
    static constexpr uint32 kStep = abi::kWgmmaWidenerWarps * 8 * abi::kWgmmaPanelBytes;  // to the next eight
    static constexpr int kMine = kPanels * kEights;                                       // chunks of a lane
    static constexpr int kAtOnce = kMine % 4 == 0 ? 4 : kMine % 3 == 0 ? 3 : kMine % 2 == 0 ? 2 : 1;
    static constexpr int kBatches = kMine / kAtOnce;
    using Batch = uint32[kAtOnce][4];
    static_assert(sizeof(Stored) == 1 && Config::tile_kv % 16 == 0);

    const Pipeline& pipeline;
    const int32 warp;  // of those that widen the same tensor
    const int32 lane = threadIdx.x % 32;

    // A lane's row of each eight, and its chunk of a panel of widened rows.
    __device__ uint32 row() const {
        const uint32 pair = lane / 8;
        return lane / kLanesOfRow % 2 == 0 ? pair : pair ^ 5;
    }
    __device__ uint32 chunk() const { return lane % kLanesOfRow; }
    // From a tile's first byte to the lane's first row.
    __device__ uint32 first_row() const { return (warp * 8 + row()) * abi::kWgmmaPanelBytes; }
    // To the widened chunks of it, from there on.
    __device__ uint32 half(int i) const { return (2 * chunk() + i ^ row()) * 16; }

    __device__ void run() const {
        using Order = BlockOrder<Config>;
        uint32 blocks = 0;
        pipeline.load_each([&](const WorkTile& work, uint32) {
#pragma unroll 1
            for (int32 n = Order::first(work.blocks), left = work.blocks.end - work.blocks.first; left > 0;
                 n += Order::kStep, --left, ++blocks)
                widen(work, n, StoredPosition(blocks), Position(blocks));
        });
    }

    __device__ void widen(const WorkTile& work, int32 n, const StoredPosition& from,
                          const Position& to) const {
        const auto stored = pipeline.template stored_ring<Values>();
        const auto widened = Values ? pipeline.values() : pipeline.keys();
        const SharedAddress target = Values ? pipeline.v(to.stage) : pipeline.k(to.stage);
        stored.wait_full(from);
        widened.wait_empty(to);
        widen_tile(pipeline.template stored<Values>(from.stage), target);
        if constexpr (Values)
            clear_unseen_rows(work.mask.read.first - n * kKeys, work.mask.read.end - n * kKeys, target);
        fence_async_proxy();
        __syncwarp();
        if (Config::gather || lane == 0) stored.empty(from.stage).arrive();
        if (lane == 0) widened.full(to.stage).arrive();
    }

    __device__ void widen_tile(SharedAddress from, SharedAddress to) const {
        // Even widened panels come from the first half of a stored panel, and odd ones from the second.
        const SharedAddress sources[2] = {from + (first_row() + (chunk() ^ row()) * 16),
                                          from + (first_row() + (kLanesOfRow + chunk() ^ row()) * 16)};
        const SharedAddress targets[2] = {to + (first_row() + half(0)), to + (first_row() + half(1))};
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
            store(batch, x[batch % 2]);
        }
    }

    // Those before `first` and from `end` on, of the rows that this lane has widened a part of.
    __device__ void clear_unseen_rows(int32 first, int32 end, SharedAddress to) const {
        if (first <= 0 && end >= kKeys) return;
#pragma unroll 1
        for (int32 eight = 0; eight < kEights; ++eight) {
            const int32 in_tile = (eight * abi::kWgmmaWidenerWarps + warp) * 8 + int32(row());
            if (in_tile >= first && in_tile < end) continue;
#pragma unroll 1
            for (int32 panel = 0; panel < kPanels; ++panel) {
                const SharedAddress at = to + (first_row() + panel * kPanel + eight * kStep);
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

}  // namespace attnsmith
