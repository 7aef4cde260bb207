// Joins the partial results of a KV split: o = sum_s w_s o_s / sum_s w_s l_s with w_s = exp2(c (m_s - max
// m)).
//
//   one warp a packed row;  lanes over head_dim_vo;  splits in ascending order, so the same bits every time
//
// A row's splits follow from the keys that it may see: others were perhaps never written and are not read.
#pragma once

#include "attention/sequence.cuh"
#include "attention/softmax.cuh"
#include "common/copy.cuh"
#include "common/element.cuh"

namespace attnsmith {

template <class Config>
__device__ void merge_row(const abi::AttentionArguments& args, const Sequence& s, int32 kv_head, int32 row) {
    constexpr int kDim = Config::head_dim_vo;
    constexpr int kPairs = (kDim / 2 + 31) / 32;  // column pairs a lane
    const int32 lane = threadIdx.x % 32;
    const int32 token = row / args.group;
    const int32 head = kv_head * args.group + row % args.group;
    const int64 partial = s.partial_row(args, token, head);
    const KeyRange keys = visible_keys(args, s, token);
    const int32 first = keys.first / args.chunk;
    const int32 end = keys.end > keys.first ? (keys.end - 1) / args.chunk + 1 : first;

    const float2* const partial_ml = reinterpret_cast<const float2*>(args.partial_ml) + partial;
    float top = -infinity();
    for (int32 split = first; split < end; ++split) top = fmaxf(top, partial_ml[split * args.rows].x);

    float total = 0.0f;
    float2 o[kPairs] = {};
    for (int32 split = first; split < end; ++split) {
        const float2 ml = partial_ml[split * args.rows];
        if (ml.y == 0.0f) continue;  // the row saw none of the chunk's keys
        const float weight = exp2_approx((ml.x - top) * args.scale_log2);
        total = fmaf(weight, ml.y, total);
        const float2* source =
            reinterpret_cast<const float2*>(args.partial_o + (split * args.rows + partial) * kDim);
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            if (lane + 32 * i >= kDim / 2) break;
            const float2 value = source[lane + 32 * i];
            o[i].x = fmaf(weight, value.x, o[i].x);
            o[i].y = fmaf(weight, value.y, o[i].y);
        }
    }

    const float sink = args.sinks ? args.sinks[head] * kLog2e : -infinity();
    const RowResult result = finish_row(top, total, args.scale_log2, sink);
    uint16* target = static_cast<uint16*>(args.o) + s.batch * args.o_batch_stride +
                     (s.q_first + token) * args.o_token_stride + head * args.o_head_stride;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
        const int32 pair = lane + 32 * i;
        if (pair >= kDim / 2) break;
        const uint32 packed = Config::Element::pack(o[i].x * result.factor, o[i].y * result.factor);
        if constexpr (Config::alignment >= 4) {
            reinterpret_cast<uint32*>(target)[pair] = packed;
        } else {
            target[2 * pair] = uint16(packed);
            target[2 * pair + 1] = uint16(packed >> 16);
        }
    }
    if (args.lse && lane == 0) {
        args.lse[s.batch * args.lse_batch_stride + (s.q_first + token) * args.lse_token_stride +
                 head * args.lse_head_stride] = result.lse * kLn2;
    }
}

// Grid: x = tile + tiles * kv_head, tiles of Config::tile_q packed rows; one warp a row.
template <class Config>
__device__ void merge_splits(const abi::AttentionArguments& args) {
    const int32 kv_head = blockIdx.x / args.tiles;
    Sequence sequence;
    int32 first_row;
    uint32 status = 0;  // the attention kernel has reported already
    if (!find_tile<Config>(args, blockIdx.x % args.tiles, Config::tile_q, sequence, first_row, status))
        return;
    const int32 end = min(first_row + Config::tile_q, sequence.rows(args));
    for (int32 row = first_row + threadIdx.x / 32; row < end; row += blockDim.x / 32) {
        merge_row<Config>(args, sequence, kv_head, row);
    }
}

}  // namespace attnsmith
