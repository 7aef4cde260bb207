// Joins the partial results of a KV split: o = sum_s w_s o_s / sum_s w_s l_s, where w_s = exp2(c (m_s - m))
// and m is the largest m_s.
//
//   one warp a packed row;  lanes over head_dim_vo;  splits in ascending order, so the same bits every time
//
// A row's splits follow from the keys that it may see: others were perhaps never written and are not read.
#pragma once

#include "attention/epilogue.cuh"
#include "attention/mask.cuh"
#include "common/element.cuh"

namespace attnsmith {

template <class Config>
__device__ void merge_row(const abi::AttentionArguments& args, const Sequence& sequence,
                          const PackedRow& row) {
    constexpr int kDim = Config::head_dim_vo;
    constexpr int kPairs = (kDim / 2 + 31) / 32;  // column pairs a lane
    using RowEpilogue = Epilogue<Config, Config::alignment>;
    const RowEpilogue epilogue{args, sequence};
    const int32 lane = threadIdx.x % 32;
    const int64 partial = sequence.partial_row(args, row.token, row.head);
    const KeyInterval splits = splits_with(args, visible_keys(args, sequence, row.token));

    const float2* const partial_ml = reinterpret_cast<const float2*>(args.partial_ml) + partial;
    float top = -infinity();
    for (int32 split = splits.first; split < splits.end; ++split)
        top = fmaxf(top, partial_ml[split * args.rows].x);

    float total = 0.0f;
    float2 o[kPairs] = {};
    for (int32 split = splits.first; split < splits.end; ++split) {
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

    const RowResult result = epilogue.finish(row, top, total);
    typename Config::Output* const target = epilogue.output(row);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
        const int32 pair = lane + 32 * i;
        if (pair >= kDim / 2) break;
        RowEpilogue::Store::two(target + 2 * pair, o[i].x * result.factor, o[i].y * result.factor);
    }
    if (args.lse && lane == 0) epilogue.store_lse(row, result);
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
        const int32 token = row / args.group;
        merge_row<Config>(args, sequence, {token, kv_head * args.group + row % args.group, true});
    }
}

}  // namespace attnsmith
