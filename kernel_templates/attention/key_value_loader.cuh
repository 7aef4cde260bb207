// The ring of K and V tiles in shared memory, and who fills it with cp.async, from contiguous or paged
// storage.
#pragma once

#include "abi/key_value_ring.h"
#include "attention/mask.cuh"
#include "attention/token_scales.cuh"
#include "common/copy.cuh"
#include "common/swizzled_tile.cuh"
#include "sequences/pages.cuh"

namespace attnsmith {

template <class Config>
struct KeyValueStages {
    static constexpr abi::KeyValueRing kRing = Config::layout.ring;
    static constexpr int kThreads = kThreadsOf<Config>;
    static constexpr int kOffsetTiles = abi::key_offset_tiles(Config::stages);

    using KeyTile = SwizzledTile<typename ColumnsOf<Config>::Key, Config::tile_kv, Config::head_dim_qk>;
    using ValueTile = SwizzledTile<typename Config::KeyValue, Config::tile_kv, Config::head_dim_vo>;

    SharedAddress base;

    // Where key tile n lies, counted from key 0.
    __device__ KeyTile keys(int32 n) const { return {base + kRing.k + (n % Config::stages) * kRing.k_stage}; }
    __device__ ValueTile values(int32 n) const {
        return {base + kRing.v + (n % Config::stages) * kRing.v_stage};
    }
    // Where key `row` of key tile n lies: KeyOffsets.
    __device__ SharedAddress key_offsets(int32 n, int32 row) const {
        return base + kRing.key_offsets + (n % kOffsetTiles) * (Config::tile_kv * abi::kKeyOffsetBytes) +
               row * abi::kKeyOffsetBytes;
    }
    // The `which`-th scales of the keys of key tile n.
    __device__ SharedAddress token_scales(int32 n, int which) const {
        constexpr int32 kRow = Config::tile_kv * int32(sizeof(float));
        constexpr int32 kEach = TokenScales<Config>::kEach;
        return base + kRing.scales + (n % abi::scale_tiles(Config::stages) * kEach + which) * kRow;
    }
};

// Where a key lies, in elements from the head's first: negative when its page id is not a page.
struct KeyOffsets {
    int64 k, v;
};
static_assert(sizeof(KeyOffsets) == abi::kKeyOffsetBytes);

template <class Config>
struct KeyValueLoader {
    using KeyValue = typename Config::KeyValue;
    using Key = typename ColumnsOf<Config>::Key;
    using PageId = typename Config::Index;
    using Stages = KeyValueStages<Config>;
    static constexpr int kThreads = Stages::kThreads;
    static_assert(Config::tile_kv <= kThreads, "one thread looks up each key of a tile: use more warps");

    const abi::AttentionArguments& args;
    const Sequence& sequence;
    const Key* k;
    const KeyValue* v;
    Stages stages;
    int32 kv_head;
    int32 first;   // only `count` keys from here on are looked up and read; the rows of others are zeros,
    uint32 count;  // so that no page or value outside of every row's window matters
    uint32& status;
    // For paged KV: the page of this thread's key in the tile that is published next. A whole tile goes by
    // between its look-up and its use, for a load takes as long under load.
    PageId ahead;
    // Those of this thread's key in the tile that was published last: on their way while a tile goes by, too.
    TokenScales<Config> scales_ahead;

    __device__ KeyValueLoader(const Stages& shared, const TileRows& tile, const KeyInterval& read,
                              uint32& status_word)
        : args(tile.args),
          sequence(tile.sequence),
          stages(shared),
          first(read.first),
          count(max(read.end - read.first, 0)),
          status(status_word) {
        k = ColumnsOf<Config>::keys(args);
        v = static_cast<const KeyValue*>(args.v);
        kv_head = tile.kv_head;
        k += tile.kv_head * args.k_head_stride;
        v += tile.kv_head * args.v_head_stride;
        if constexpr (!Config::paged) {
            k += sequence.batch * args.k_batch_stride + sequence.kv_first * args.k_token_stride;
            v += sequence.batch * args.v_batch_stride + sequence.kv_first * args.v_token_stride;
        }
    }

    __device__ void load_k(int32 tile) const { load<0>(stages.keys(tile), tile, k, args.k_token_stride); }
    __device__ void load_v(int32 tile) const { load<1>(stages.values(tile), tile, v, args.v_token_stride); }

    __device__ bool is_read(int32 key) const { return uint32(key - first) < count; }

    // With paged KV the page table is read ahead of the loads, and where keys lie is published in shared
    // memory: behind a barrier load_k() and load_v() may have these tiles. The first ones are looked up
    // before any of them is published, so that they wait together.
    template <int Tiles>
    __device__ void publish_first(int32 tile) {
        if constexpr (kPublishes) {
            PageId ids[Tiles];
#pragma unroll
            for (int i = 0; i < Tiles; ++i) ids[i] = look_up(tile + i);
#pragma unroll
            for (int i = 0; i < Tiles; ++i) publish(tile + i, ids[i]);
            if constexpr (Config::scale_blocks > 0) {
                TokenScales<Config> scales[Tiles];
#pragma unroll
                for (int i = 0; i < Tiles; ++i) scales[i] = look_up_scales(tile + i, ids[i]);
#pragma unroll
                for (int i = 0; i + 1 < Tiles; ++i) publish_scales(tile + i, scales[i]);
                scales_ahead = scales[Tiles - 1];
            }
            ahead = look_up(tile + Tiles);
        }
    }
    // REQUIRES: the tile before it was the last to be published. The scales of keys come a tile later than
    // their places: behind a barrier those of the tile before are there.
    __device__ void publish_next(int32 tile) {
        if constexpr (kPublishes) {
            publish(tile, ahead);
            if constexpr (Config::scale_blocks > 0) {
                publish_scales(tile - 1, scales_ahead);
                scales_ahead = look_up_scales(tile, ahead);
            }
            ahead = look_up(tile + 1);
        }
    }

  private:
    static constexpr bool kPublishes = Config::paged || Config::scale_blocks > 0;

    // The key of a tile that this thread looks up.
    __device__ int32 key_of(int32 tile) const { return tile * Config::tile_kv + threadIdx.x; }

    // The page of this thread's key, as it is: nothing waits for it.
    __device__ PageId look_up(int32 tile) const {
        const int32 key = key_of(tile);
        if (!Config::paged || threadIdx.x >= Config::tile_kv || !is_read(key)) return PageId(-1);
        return pages_of<PageId>(args, sequence)[page_of(args, key)];
    }

    __device__ TokenScales<Config> look_up_scales(int32 tile, PageId id) const {
        const int32 key = key_of(tile);
        TokenScales<Config> scales;
        if (threadIdx.x >= Config::tile_kv || !is_read(key)) return scales;
        if constexpr (Config::paged) {
            if (has_page(args, id)) scales.load(args, kv_head, id, key - page_of(args, key) * args.page_size);
        } else {
            scales.load(args, kv_head, sequence.batch, sequence.kv_first + key);
        }
        return scales;
    }

    __device__ void publish_scales(int32 tile, TokenScales<Config>& scales) const {
        if (threadIdx.x >= Config::tile_kv) return;
        if (!scales.check()) status |= abi::kStatusScaleNotPositive;
#pragma unroll
        for (int i = 0; i < TokenScales<Config>::kEach; ++i)
            store_shared(stages.token_scales(tile, i) + threadIdx.x * uint32(sizeof(float)),
                         __float_as_uint(scales.values[i]));
    }

    __device__ void publish(int32 tile, PageId id) const {
        if (!Config::paged || threadIdx.x >= Config::tile_kv) return;
        const int32 key = key_of(tile);
        KeyOffsets offsets{-1, -1};
        if (is_read(key)) {
            const int64 slot = key - page_of(args, key) * args.page_size;
            if (has_page(args, id)) {
                offsets = {id * args.k_batch_stride + slot * args.k_token_stride,
                           id * args.v_batch_stride + slot * args.v_token_stride};
            } else {
                status |= abi::kStatusPageOutOfRange;
            }
        }
        store_shared_16_bytes(stages.key_offsets(tile, threadIdx.x), offsets.k, offsets.v);
    }

    // `Which` of a key's offsets is the tensor's.
    template <int Which, class Tile, class Stored>
    __device__ void load(const Tile& target, int32 tile, const Stored* base, int64 token_stride) const {
        constexpr int kHeadDim = Which == 0 ? Config::head_dim_qk : Config::head_dim_vo;
        constexpr int kElements = Tile::kChunkElements, kElementBytes = Tile::kElementBytes;
        constexpr int kChunks = abi::padded_head_dim(kHeadDim) / kElements;
        // A thread keeps its chunk and goes down by whole rows; threads beyond the last whole row sit out.
        constexpr int kRows = kThreads / kChunks;
        constexpr int kRounds = (Config::tile_kv + kRows - 1) / kRows;
        constexpr bool kEven = Config::tile_kv % kRows == 0 && kRows % 8 == 0;
        // Uneven rounds have addresses of their own: unrolled all the way they would be kept in registers.
        constexpr int kUnroll = kEven ? kRounds : 2;
        // Offsets are read for several rounds before the first of their copies is issued, which would wait
        // for each of them else: reads from shared memory do not pass copies to it.
        constexpr int kTogether = !Config::paged              ? 1
                                  : kEven && kRounds % 4 == 0 ? 4
                                  : kRounds % 2 == 0          ? 2
                                                              : 1;
        if (kThreads % kChunks != 0 && threadIdx.x >= kRows * kChunks) return;
        const int32 first_key = tile * Config::tile_kv;
        const int32 first_row = threadIdx.x / kChunks;
        const int32 chunk = threadIdx.x % kChunks;
        const Stored* next = base + int64(first_key + first_row) * token_stride + chunk * kElements;
#pragma unroll kUnroll / kTogether
        for (int32 round = 0; round < kRounds; round += kTogether) {
            int64 offsets[kTogether];
#pragma unroll
            for (int i = 0; i < kTogether; ++i)
                offsets[i] = offset<Which>(tile, first_row + (round + i) * kRows);
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                const int32 row = first_row + (round + i) * kRows;
                if (Config::tile_kv % kRows != 0 && row >= Config::tile_kv) break;
                bool valid = is_read(first_key + row);
                if constexpr (kHeadDim % 16 != 0) valid = valid && chunk < kHeadDim / kElements;
                const Stored* source = next;
                if constexpr (Config::paged) {
                    valid = valid && offsets[i] >= 0;
                    source = base + offsets[i] + chunk * kElements;
                } else {
                    next += kRows * token_stride;
                }
                copy_16_bytes<Config::alignment, kHeadDim * kElementBytes>(target.chunk(row, chunk),
                                                                           valid ? source : base, valid);
            }
        }
    }

    // Where row `row` of a tile lies in pages.
    template <int Which>
    __device__ int64 offset(int32 tile, int32 row) const {
        if (!Config::paged || row >= Config::tile_kv) return -1;
        return load_shared_8_bytes(stages.key_offsets(tile, row) + Which * uint32(sizeof(int64)));
    }
};

}  // namespace attnsmith
