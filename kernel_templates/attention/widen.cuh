// Widens keys and values of 8 bits into the workspace as fp16, which has all of their numbers, for an
// attention that multiplies each of them with so many queries that it takes less time to read them twice as
// wide than to widen them for every tile of queries.
//
// A row of a page that is none is zeros, as attention has it; and rows that no query of their sequence sees
// are neither read nor written, nor are their pages looked at. Lengths and scales are the attention's to
// report.
#pragma once

#include "abi/widen_arguments.h"
#include "attention/mask.cuh"
#include "common/copy.cuh"
#include "common/element.cuh"
#include "sequences/pages.cuh"

namespace attnsmith {

template <class Config>
struct KeyWidener {
    using Stored = typename Config::KeyValue;
    using PageId = typename Config::Index;
    static_assert(sizeof(Stored) == 1);

    const abi::AttentionArguments& args;
    const Sequence& sequence;
    const int32 kv_head;

    // Where a key lies, in pages or in a row of tokens: the outer coordinate, negative where there is no such
    // page, and the token's.
    struct Place {
        int64 outer, token;
    };
    static_assert(sizeof(Place) == abi::kWidenedPlaceBytes);
    __device__ Place place_of(int32 key, uint32& status) const {
        if constexpr (Config::paged) {
            const uint32 page = page_of(args, key);
            const PageId id = pages_of<PageId>(args, sequence)[page];
            if (has_page(args, id)) return {int64(id), int64(key - page * args.page_size)};
            status |= abi::kStatusPageOutOfRange;
            return {-1, 0};
        } else {
            return {sequence.batch, sequence.kv_first + key};
        }
    }

    // By all threads of the block: 16 columns of a key each, and then those of others.
    template <int HeadDim>
    __device__ void widen(const void* stored, int64 outer_stride, int64 token_stride, int64 head_stride,
                          void* widened, int32 first_key, int32 count, const Place* places) const {
        constexpr int kChunks = HeadDim / 16;
        const auto* const base = static_cast<const Stored*>(stored) + kv_head * head_stride;
        uint16* const target = static_cast<uint16*>(widened) +
                               (int64(sequence.batch) * args.max_kv_len * args.kv_heads + kv_head) * HeadDim;
        const int64 row_stride = int64(args.kv_heads) * HeadDim;
#pragma unroll 4
        for (int32 i = threadIdx.x; i < count * kChunks; i += blockDim.x) {
            const int32 row = i / kChunks, column = i % kChunks * 16;
            const Place at = places[row];
            uint32 x[4] = {};
            if (at.outer >= 0)
                load_16_bytes<16>(x, base + at.outer * outer_stride + at.token * token_stride + column);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                uint32 low[2], high[2];
                Stored::widen(low, x[2 * half]);
                Stored::widen(high, x[2 * half + 1]);
                const uint32 of_eight[4] = {low[0], low[1], high[0], high[1]};
                store_16_bytes<16>(target + (first_key + row) * row_stride + column + half * 8, of_eight);
            }
        }
    }
};

// Grid: x = block + blocks * (kv_head + kv_heads * sequence).
template <class Config>
__device__ void widen_keys(const abi::WidenArguments& arguments) {
    using Widener = KeyWidener<Config>;
    extern __shared__ __align__(16) char memory[];
    auto* const places = reinterpret_cast<typename Widener::Place*>(memory);
    const abi::AttentionArguments& args = arguments.attention;
    const int32 line = blockIdx.x / arguments.blocks;
    const int32 kv_head = line % args.kv_heads;
    uint32 ignored = 0;
    const Sequence sequence = load_sequence<Config>(args, line / args.kv_heads, ignored);
    if (sequence.q_len == 0) return;
    const int32 begin = int32(blockIdx.x % arguments.blocks) * Config::tile_q;
    const int32 first = max(begin, visible_keys(args, sequence, 0).first);
    const int32 end = min(begin + Config::tile_q, visible_keys(args, sequence, sequence.q_len - 1).end);
    if (first >= end) return;
    const Widener widener{args, sequence, kv_head};
    uint32 status = 0;
    if (threadIdx.x < end - first) places[threadIdx.x] = widener.place_of(first + threadIdx.x, status);
    report(args, status);
    __syncthreads();
    widener.template widen<Config::head_dim_qk>(args.k, args.k_batch_stride, args.k_token_stride,
                                                args.k_head_stride, arguments.k, first, end - first, places);
    widener.template widen<Config::head_dim_vo>(args.v, args.v_batch_stride, args.v_token_stride,
                                                args.v_head_stride, arguments.v, first, end - first, places);
}

}  // namespace attnsmith
