// Brings tiles of K and V to shared memory with cp.async, from contiguous or paged storage.
#pragma once

#include "attention/sequence.cuh"
#include "common/copy.cuh"
#include "common/panel.cuh"

namespace attnsmith {

// Where a key lies, in elements from the head's first: negative when its page id is not a page.
struct KeyOffsets {
    int64 k, v;
};

template <class Config>
struct KeyValueTiles {
    static constexpr int kThreads = Config::warps_q * Config::warps_kv * 32;
    static constexpr int kOffsetTiles = Config::stages + 2;
    static_assert(Config::tile_kv <= kThreads, "one thread looks up each key of a tile: use more warps");

    const abi::AttentionArguments& args;
    const Sequence& sequence;
    const uint16* k;
    const uint16* v;
    uint32 shared;  // the block's shared memory
    int32 first;    // only `count` keys from here on are looked up and read; the rows of others are zeros,
    uint32 count;   // so that no page or value outside of every row's window matters
    uint32& status;

    static constexpr abi::AttentionShared kLayout = abi::attention_shared(Config::shape);

    __device__ KeyValueTiles(const abi::AttentionArguments& a, const Sequence& s, int32 kv_head,
                             uint32 shared_base, int32 first_key, int32 end_key, uint32& status_word)
        : args(a),
          sequence(s),
          shared(shared_base),
          first(first_key),
          count(max(end_key - first_key, 0)),
          status(status_word) {
        k = static_cast<const uint16*>(a.k) + kv_head * a.k_head_stride;
        v = static_cast<const uint16*>(a.v) + kv_head * a.v_head_stride;
        if constexpr (!Config::paged) {
            k += s.batch * a.k_batch_stride + s.kv_first * a.k_token_stride;
            v += s.batch * a.v_batch_stride + s.kv_first * a.v_token_stride;
        }
    }

    __device__ void load_k(int32 tile) const {
        load<Config::head_dim_qk, 0>(kLayout.k + (tile % Config::stages) * kLayout.k_stage, tile, k,
                                     args.k_token_stride);
    }
    __device__ void load_v(int32 tile) const {
        load<Config::head_dim_vo, 1>(kLayout.v + (tile % Config::stages) * kLayout.v_stage, tile, v,
                                     args.v_token_stride);
    }

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
        const uint32 target = row_offsets(tile) + threadIdx.x * 16;
        asm volatile("st.shared.v2.b64 [%0], {%1, %2};" ::"r"(target), "l"(offsets.k), "l"(offsets.v)
                     : "memory");
    }

  private:
    __device__ uint32 row_offsets(int32 tile) const {
        return shared + kLayout.row_offsets + (tile % kOffsetTiles) * (Config::tile_kv * 16);
    }

    template <int HeadDim, int Which>
    __device__ void load(int32 target, int32 tile, const uint16* base, int64 token_stride) const {
        constexpr int kChunks = abi::padded_head_dim(HeadDim) / 8;
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
        const uint16* next = base + int64(first_key + first_row) * token_stride + chunk * 8;
#pragma unroll kUnroll
        for (int32 round = 0; round < kRounds; ++round) {
            const int32 row = first_row + round * kRows;
            if (Config::tile_kv % kRows != 0 && row >= Config::tile_kv) break;
            bool valid = is_read(first_key + row);
            if constexpr (HeadDim % 16 != 0) valid = valid && chunk < HeadDim / 8;
            const uint16* source = next;
            if constexpr (Config::paged) {
                int64 offset;
                asm volatile("ld.shared.b64 %0, [%1];"
                             : "=l"(offset)
                             : "r"(row_offsets(tile) + row * 16 + Which * 8));
                valid = valid && offset >= 0;
                source = base + offset + chunk * 8;
            } else {
                next += kRows * token_stride;
            }
            copy_16_bytes<Config::alignment>(
                shared + target + Panel<Config::tile_kv, HeadDim>::offset(row, chunk), valid ? source : base,
                valid);
        }
    }
};

}  // namespace attnsmith
