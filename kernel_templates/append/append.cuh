// Writes new tokens into a cache of keys and values, and their queries: normalised, then rotated, then
// rounded once to what the target has. A warp an item, which is a piece of a token's heads of q, of k or of
// v:
//
//   loads     some of the piece's rows at once: the first wait for nothing
//   place     the token's slot or its sequence, page and position, by the same warp
//   angles    cosines and sines of the position, once for all rows of the piece
//   each row  norm -> rope -> 1 / scale -> round -> store
//
// Twice 8 columns a lane; the lanes of a row side by side, several rows a warp. Warps share nothing: no
// barrier, no shared memory. A lane reads its columns before it writes them, so q may be written in place.
//
// The order of the arithmetic is fixed (docs/numerics.md): nothing is fused but the sum of a chunk's squares.
#pragma once

#include "append/angles.cuh"
#include "append/place.cuh"
#include "append/row.cuh"
#include "append/slots.cuh"
#include "common/math.cuh"

namespace attnsmith {

// What is done to the rows of q, of k and of v. Of latents, k is the position's columns and v the latent's.
template <class Config>
struct QueryJob {
    static constexpr int kColumns = Config::columns_q, kStored = Config::q_significand;
    static constexpr bool kNorm = Config::norm_q, kWeighted = true, kRope = Config::rope != 0;
};
template <class Config>
struct KeyJob {
    static constexpr int kColumns = Config::columns_k, kStored = Config::kv_significand;
    static constexpr bool kNorm = Config::norm_k, kWeighted = true, kRope = Config::rope != 0;
};
template <class Config>
struct ValueJob {
    static constexpr int kColumns = Config::columns_v, kStored = Config::kv_significand;
    static constexpr bool kNorm = Config::norm_v, kWeighted = Config::weighted_v, kRope = false;
};

// The rotary columns of a row. Neighbours are both in a lane; halves are `half` apart, which need be no
// multiple of a chunk.
template <class Config, class Row>
__device__ void rotate(Row& row, const Row& before, int slot, int32 chunk, const Angles<Config>& angles) {
    constexpr int kRotary = Config::rotary_dim, kHalf = kRotary / 2;
    constexpr int kWhole = (kHalf + kAppendChunk - 1) / kAppendChunk;  // chunks that hold a half
    float(&x)[8] = row.x[slot];
    const int32 column = chunk * kAppendChunk;
    if constexpr (Config::rope == kRopeHalf) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const bool first = column + i < kHalf;
            float other;
            if constexpr (kHalf % kAppendChunk == 0) {
                other = before.at(first ? chunk + kHalf / kAppendChunk : chunk - kHalf / kAppendChunk, i);
            } else {
                const int up = i + kHalf, down = i - kHalf + kWhole * kAppendChunk;
                const float above = before.at(chunk + up / kAppendChunk, up % kAppendChunk);
                const float below = before.at(chunk + down / kAppendChunk - kWhole, down % kAppendChunk);
                other = first ? above : below;
            }
            if (column + i < kRotary)
                x[i] = __fadd_rn(__fmul_rn(x[i], angles.cos[i]),
                                 __fmul_rn(other, first ? -angles.sin[i] : angles.sin[i]));
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float even = x[2 * i], odd = x[2 * i + 1];
            if (column + 2 * i >= kRotary) continue;
            x[2 * i] = __fsub_rn(__fmul_rn(even, angles.cos[i]), __fmul_rn(odd, angles.sin[i]));
            x[2 * i + 1] = __fadd_rn(__fmul_rn(odd, angles.cos[i]), __fmul_rn(even, angles.sin[i]));
        }
    }
}

// As rotate(), of a lane that has both halves.
template <class Config>
__device__ void rotate_halves(float (&first)[8], float (&second)[8], const Angles<Config>& angles) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float a = first[i], b = second[i];
        first[i] = __fadd_rn(__fmul_rn(a, angles.cos[i]), __fmul_rn(b, -angles.sin[i]));
        second[i] = __fadd_rn(__fmul_rn(b, angles.cos[i]), __fmul_rn(a, angles.sin[i]));
    }
}

// One over the scale, by which values are multiplied. NaN where it is no ordinary number above 0.
__device__ inline float inverse_of(float scale, uint32& status) {
    if (scale >= __uint_as_float(0x00800000u) && scale < infinity()) return __frcp_rn(scale);
    status |= abi::kStatusScaleNotPositive;
    return not_a_number();
}

template <class Config, class Job>
__device__ void append_rows(const abi::AppendArguments& args, const abi::AppendRows& rows, int32 token,
                            int32 piece, bool is_cache) {
    using Element = typename Config::Element;
    constexpr bool kHasHalves = abi::append_has_halves(
        Job::kColumns, Job::kRope && Config::rope == kRopeHalf ? Config::rotary_dim : 0);
    constexpr int kLanes = abi::append_lanes(Job::kColumns, kHasHalves);
    constexpr int kChunks = abi::append_chunks(Job::kColumns, kHasHalves);
    constexpr int kRows = 32 / kLanes;
    constexpr int kSteps = abi::append_at_once(kChunks);
    const int32 lane = threadIdx.x % 32, chunk = lane % kLanes;
    const int32 first = piece * rows.steps * kRows + lane / kLanes;
    const int32 sequence = args.q_len != 0 ? token / args.q_len : 0;
    const int32 in_sequence = args.q_len != 0 ? token - sequence * args.q_len : token;

    uint32 packed[kSteps][kChunks][4];
    float scale[kSteps];
    const Element* const source = static_cast<const Element*>(rows.source) +
                                  sequence * rows.source_sequence_stride +
                                  in_sequence * rows.source_token_stride;
    // The rows of some steps, `done` of which are behind.
    const auto load = [&](int32 done) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const int32 head = first + (done + step) * kRows;
            const bool is_there = done + step < rows.steps && head < rows.heads;
            scale[step] = rows.scale && is_there ? rows.scale[head * rows.scale_stride] : 1.0f;
#pragma unroll
            for (int c = 0; c < kChunks; ++c) {
                const int32 column = (chunk + c * kLanes) * kAppendChunk;
#pragma unroll
                for (int i = 0; i < 4; ++i) packed[step][c][i] = 0;
                if (!is_there || column >= Job::kColumns) continue;
                load_16_bytes<Config::alignment>(packed[step][c],
                                                 source + head * rows.source_head_stride + column);
            }
        }
    };
    load(0);

    uint32 status = 0;
    const TokenPlace place = place_of<Config>(args, token, status);
    if (!place.is_written) {
        if (lane == 0) report(args.batch, status);
        return;
    }

    // A chunk behind the rotary columns has no angles.
    Angles<Config> angles[kHasHalves ? 1 : kChunks];
    float weight[kChunks][8];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
        const int32 column = (chunk + c * kLanes) * kAppendChunk;
        if constexpr (Job::kRope) {
            if (c * kLanes * kAppendChunk < (kHasHalves ? kLanes * kAppendChunk : Config::rotary_dim))
                angles[c].load(args, place.position, column);
        }
        if constexpr (Job::kNorm && Job::kWeighted) {
            if (column >= Job::kColumns) continue;
            if (rows.weight_is_fp32)
                load_floats<8, Config::alignment>(weight[c], static_cast<const f32*>(rows.weight) + column);
            else
                load_floats<8, Config::alignment>(weight[c],
                                                  static_cast<const Element*>(rows.weight) + column);
        }
    }

    char* const target = static_cast<char*>(rows.target) +
                         ((is_cache ? place.outer : sequence) * rows.target_sequence_stride +
                          (is_cache ? place.offset : in_sequence) * rows.target_token_stride) *
                             (Job::kStored == 0 ? 2 : 1);
#pragma unroll 1
    for (int32 done = 0;; load(done)) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            if (done + step >= rows.steps) break;
            const int32 head = first + (done + step) * kRows;
            RowChunks<kLanes, kChunks> row;
#pragma unroll
            for (int c = 0; c < kChunks; ++c) unpack_chunk<Element>(row.x[c], packed[step][c]);
            if constexpr (Job::kNorm) {
                float sums[kChunks];
#pragma unroll
                for (int c = 0; c < kChunks; ++c) sums[c] = sum_of_squares(row.x[c]);
                const float factor = norm_factor<kLanes>(sums, Job::kColumns, args.eps);
#pragma unroll
                for (int c = 0; c < kChunks; ++c) {
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        row.x[c][i] = __fmul_rn(row.x[c][i], factor);
                        if constexpr (Job::kWeighted) row.x[c][i] = __fmul_rn(row.x[c][i], weight[c][i]);
                    }
                }
            }
            if constexpr (kHasHalves) {
                rotate_halves<Config>(row.x[0], row.x[kChunks - 1], angles[0]);
            } else if constexpr (Job::kRope) {
                const RowChunks<kLanes, kChunks> before = row;
#pragma unroll
                for (int c = 0; c < kChunks; ++c) {
                    if (c * kLanes * kAppendChunk < Config::rotary_dim)
                        rotate<Config>(row, before, c, chunk + c * kLanes, angles[c]);
                }
            }
            if (head >= rows.heads) continue;
            const float inverse = rows.scale ? inverse_of(scale[step], status) : 1.0f;
#pragma unroll
            for (int c = 0; c < kChunks; ++c) {
                const int32 column = (chunk + c * kLanes) * kAppendChunk;
                if (column >= Job::kColumns) continue;
                if constexpr (Job::kStored != 0) {
                    if (rows.scale) {
#pragma unroll
                        for (int i = 0; i < 8; ++i) row.x[c][i] = __fmul_rn(row.x[c][i], inverse);
                    }
                }
                store_chunk<Element, Job::kStored, Config::alignment>(
                    target + head * rows.target_head_stride * (Job::kStored == 0 ? 2 : 1), column, row.x[c]);
            }
        }
        done += kSteps;
        if (done >= rows.steps) break;
    }
    report(args.batch, status);
}

// Offsets that end behind the last token are those of a sequence that no token may be of.
template <class Config>
__device__ void check_offsets(const abi::AppendArguments& args) {
    if constexpr (Config::by_table) {
        using Index = typename Config::Index;
        if (!args.batch.q_indptr || blockIdx.x != 0 || threadIdx.x != 0) return;
        if (index_at<Index>(args.batch.q_indptr, 0) < 0 ||
            index_at<Index>(args.batch.q_indptr, args.batch.batch) > args.batch.q_tokens)
            report(args.batch, abi::kStatusQueryClamped);
    }
}

// Grid: x = items, and pairs of tiles of slots behind them, / the warps of a CTA.
template <class Config>
__device__ void append(const abi::AppendArguments& args) {
    check_offsets<Config>(args);
    const uint32 item = blockIdx.x * uint32(Config::threads / 32) + threadIdx.x / 32;
    if (item >= uint32(args.items)) {
        if constexpr (Config::check_slots) {
            const uint32 pair = item - uint32(args.items);
            if (pair < uint32(args.slot_tiles) * uint32(args.slot_pairs.value))
                check_slots<Config>(args, int32(pair));
        }
        return;
    }
    const int32 token = int32(item / args.pieces);
    int32 piece = int32(item) - token * args.pieces;
    if constexpr (Config::columns_q > 0) {
        if (piece < args.q.pieces)
            return append_rows<Config, QueryJob<Config>>(args, args.q, token, piece, false);
        piece -= args.q.pieces;
    }
    if constexpr (Config::columns_k > 0) {
        if (piece < args.k.pieces)
            return append_rows<Config, KeyJob<Config>>(args, args.k, token, piece, true);
        piece -= args.k.pieces;
    }
    append_rows<Config, ValueJob<Config>>(args, args.v, token, piece, true);
}

}  // namespace attnsmith
