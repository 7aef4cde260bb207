// Brings tiles of Q, K and V to shared memory with cp.async, from contiguous or paged storage.
#pragma once

#include "attention/mask.cuh"
#include "attention/mma/pipeline.cuh"
#include "common/copy.cuh"

namespace attnsmith {

template <class Config>
struct MmaQueryLoader {
    using Query = typename Config::Query;
    using Pipeline = MmaPipeline<Config>;

    // The tile's rows; those that are no rows of the sequence, and columns beyond the head dim, are zeros.
    static __device__ void load(const Pipeline& pipeline, const QueryTile& tile) {
        constexpr int kElements = Pipeline::QueryTile::kChunkElements;
        constexpr int kChunks = abi::padded_head_dim(Config::head_dim_qk) / kElements;
        const abi::AttentionArguments& args = tile.args;
        const Sequence& sequence = tile.sequence;
        const Query* base = static_cast<const Query*>(args.q) + sequence.batch * args.q_batch_stride;
#pragma unroll 1
        for (int32 i = threadIdx.x; i < Config::tile_q * kChunks; i += Pipeline::kThreads) {
            const PackedRow row = tile.row(i / kChunks);
            const int32 chunk = i % kChunks;
            const bool valid = row.valid && chunk < Config::head_dim_qk / kElements;
            const Query* source = base + (sequence.q_first + row.token) * args.q_token_stride +
                                  row.head * args.q_head_stride + chunk * kElements;
            copy_16_bytes<Config::alignment>(pipeline.queries().chunk(i / kChunks, chunk),
                                             valid ? source : base, valid);
        }
    }
};

// Where a key lies, in elements from the head's first: negative when its page id is not a page.
struct KeyOffsets {
    int64 k, v;
};
static_assert(sizeof(KeyOffsets) == abi::kMmaKeyOffsetBytes);

template <class Config>
struct MmaKeyValueLoader {
    using KeyValue = typename Config::KeyValue;
    using Pipeline = MmaPipeline<Config>;
    static constexpr int kThreads = Pipeline::kThreads;
    static_assert(Config::tile_kv <= kThreads, "one thread looks up each key of a tile: use more warps");

    const abi::AttentionArguments& args;
    const Sequence& sequence;
    const KeyValue* k;
    const KeyValue* v;
    Pipeline pipeline;
    int32 first;   // only `count` keys from here on are looked up and read; the rows of others are zeros,
    uint32 count;  // so that no page or value outside of every row's window matters
    uint32& status;

    __device__ MmaKeyValueLoader(const Pipeline& shared, const QueryTile& tile, const KeyInterval& read,
                                 uint32& status_word)
        : args(tile.args),
          sequence(tile.sequence),
          pipeline(shared),
          first(read.first),
          count(max(read.end - read.first, 0)),
          status(status_word) {
        k = static_cast<const KeyValue*>(args.k) + tile.kv_head * args.k_head_stride;
        v = static_cast<const KeyValue*>(args.v) + tile.kv_head * args.v_head_stride;
        if constexpr (!Config::paged) {
            k += sequence.batch * args.k_batch_stride + sequence.kv_first * args.k_token_stride;
            v += sequence.batch * args.v_batch_stride + sequence.kv_first * args.v_token_stride;
        }
    }

    __device__ void load_k(int32 tile) const { load<0>(pipeline.keys(tile), tile, k, args.k_token_stride); }
    __device__ void load_v(int32 tile) const { load<1>(pipeline.values(tile), tile, v, args.v_token_stride); }

    __device__ bool is_read(int32 key) const { return uint32(key - first) < count; }

    // The page table is read one tile ahead of the loads: first into a register, ...
    __device__ KeyOffsets look_up(int32 tile) const {
        const int32 key = tile * Config::tile_kv + threadIdx.x;
        if (threadIdx.x >= Config::tile_kv || !is_read(key)) return {-1, -1};
        const uint32 page = uint32(key) / uint32(args.page_size);
        const int64 slot = key - page * args.page_size;
        const int64 id = index_at<typename Config::Index>(args.page_ids, sequence.page_row + page);
        if (id < 0 || id >= args.pages) {
            status |= abi::kStatusPageOutOfRange;
            return {-1, -1};
        }
        return {id * args.k_batch_stride + slot * args.k_token_stride,
                id * args.v_batch_stride + slot * args.v_token_stride};
    }
    // ... then, behind a barrier, to shared memory.
    __device__ void publish(int32 tile, const KeyOffsets& offsets) const {
        if (threadIdx.x >= Config::tile_kv) return;
        store_shared_16_bytes(pipeline.key_offsets(tile, threadIdx.x), offsets.k, offsets.v);
    }

  private:
    // `Which` of a key's offsets is the tensor's.
    template <int Which, class Tile>
    __device__ void load(const Tile& target, int32 tile, const KeyValue* base, int64 token_stride) const {
        constexpr int kHeadDim = Which == 0 ? Config::head_dim_qk : Config::head_dim_vo;
        constexpr int kElements = Tile::kChunkElements;
        constexpr int kChunks = abi::padded_head_dim(kHeadDim) / kElements;
        // A thread keeps its chunk and goes down by whole rows; threads beyond the last whole row sit out.
        constexpr int kRows = kThreads / kChunks;
        constexpr int kRounds = (Config::tile_kv + kRows - 1) / kRows;
        constexpr bool kEven = Config::tile_kv % kRows == 0 && kRows % 8 == 0;
        // Uneven rounds have addresses of their own: unrolled all the way they would be kept in registers.
        constexpr int kUnroll = kEven ? kRounds : 2;
        if (kThreads % kChunks != 0 && threadIdx.x >= kRows * kChunks) return;
        const int32 first_key = tile * Config::tile_kv;
        const int32 first_row = threadIdx.x / kChunks;
        const int32 chunk = threadIdx.x % kChunks;
        const KeyValue* next = base + int64(first_key + first_row) * token_stride + chunk * kElements;
#pragma unroll kUnroll
        for (int32 round = 0; round < kRounds; ++round) {
            const int32 row = first_row + round * kRows;
            if (Config::tile_kv % kRows != 0 && row >= Config::tile_kv) break;
            bool valid = is_read(first_key + row);
            if constexpr (kHeadDim % 16 != 0) valid = valid && chunk < kHeadDim / kElements;
            const KeyValue* source = next;
            if constexpr (Config::paged) {
                const int64 offset =
                    load_shared_8_bytes(pipeline.key_offsets(tile, row) + Which * uint32(sizeof(int64)));
                valid = valid && offset >= 0;
                source = base + offset + chunk * kElements;
            } else {
                next += kRows * token_stride;
            }
            copy_16_bytes<Config::alignment>(target.chunk(row, chunk), valid ? source : base, valid);
        }
    }
};

}  // namespace attnsmith
