// Writes new tokens into a cache of keys and values, and their queries: normalised, then rotated, then
// rounded once to what the target has. A warp an item, which is a piece of a token's heads of q, of k or of
// v:
//
//   loads     some of the piece's rows at once: the first wait for nothing
//   place     the token's slot or its sequence, page and position, by the same warp
//   angles    cosines and sines of the position, once for all rows of the piece
//   each row  norm -> rope -> its scales, where it has some of its own -> 1 / scale -> round -> store
//
// Twice 8 columns a lane; the lanes of a row side by side, several rows a warp. Warps share nothing: no
// barrier, no shared memory. A lane reads its columns before it writes them, so q may be written in place.
//
// The order of the arithmetic is fixed (docs/numerics.md): nothing is fused but the sum of a chunk's squares.
#pragma once

#include "append/angles.cuh"
#include "append/jobs.cuh"
#include "append/place.cuh"
#include "append/row.cuh"
#include "append/scales.cuh"
#include "append/slots.cuh"
#include "common/math.cuh"

namespace attnsmith {

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

// What all rows of a token have in common: angles of its position, and weights of the norm.
template <class Config, class Job>
struct Finish {
    using Rows = Layout<Config, Job>;

    Angles<Config> angles[Rows::kHasHalves ? 1 : Rows::kChunks];
    float weight[Rows::kChunks][8];

    // Whether chunk c is rotated: one behind the rotary columns has no angles.
    static constexpr __device__ bool is_rotated(int c) {
        return c * Rows::kLanes * kAppendChunk < Config::rotary_dim;
    }

    __device__ void load(const abi::AppendArguments& args, const abi::AppendRows& rows, int64 position) {
        using Element = typename Config::Element;
#pragma unroll
        for (int c = 0; c < Rows::kChunks; ++c) {
            const int32 column = Rows::column(c);
            if constexpr (Job::kRope) {
                if (Rows::kHasHalves ? c == 0 : is_rotated(c)) angles[c].load(args, position, column);
            }
            if constexpr (Job::kNorm && Job::kWeighted) {
                if (!Rows::has(c)) continue;
                if (rows.weight_is_fp32)
                    load_floats<8, Config::alignment>(weight[c],
                                                      static_cast<const f32*>(rows.weight) + column);
                else
                    load_floats<8, Config::alignment>(weight[c],
                                                      static_cast<const Element*>(rows.weight) + column);
            }
        }
    }

    // The row in fp32, as it is before scales. By a whole warp.
    __device__ typename Rows::Row apply(const typename Rows::Packed& packed, float eps) const {
        typename Rows::Row row;
#pragma unroll
        for (int c = 0; c < Rows::kChunks; ++c) unpack_chunk<typename Config::Element>(row.x[c], packed[c]);
        if constexpr (Job::kNorm) {
            float sums[Rows::kChunks];
#pragma unroll
            for (int c = 0; c < Rows::kChunks; ++c) sums[c] = sum_of_squares(row.x[c]);
            const float factor = norm_factor<Rows::kLanes>(sums, Job::kColumns, eps);
#pragma unroll
            for (int c = 0; c < Rows::kChunks; ++c) {
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    row.x[c][i] = __fmul_rn(row.x[c][i], factor);
                    if constexpr (Job::kWeighted) row.x[c][i] = __fmul_rn(row.x[c][i], weight[c][i]);
                }
            }
        }
        if constexpr (Rows::kHasHalves) {
            rotate_halves<Config>(row.x[0], row.x[Rows::kChunks - 1], angles[0]);
        } else if constexpr (Job::kRope) {
            const typename Rows::Row before = row;
            const int32 chunk = threadIdx.x % Rows::kLanes;
#pragma unroll
            for (int c = 0; c < Rows::kChunks; ++c)
                if (is_rotated(c)) rotate<Config>(row, before, c, chunk + c * Rows::kLanes, angles[c]);
        }
        return row;
    }
};

// Times `inverse` of each chunk, which is one over its scale.
template <class Config, class Job>
__device__ void store_row(char* target, const typename Layout<Config, Job>::Row& row, const float* inverse,
                          bool is_scaled) {
    using Rows = Layout<Config, Job>;
#pragma unroll
    for (int c = 0; c < Rows::kChunks; ++c) {
        if (!Rows::has(c)) continue;
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; ++i)
            x[i] = Job::kStored != 0 && is_scaled ? __fmul_rn(row.x[c][i], inverse[c]) : row.x[c][i];
        store_chunk<typename Config::Element, Job::kStored, Config::alignment>(target, Rows::column(c), x);
    }
}

template <class Config, class Job>
__device__ void append_rows(const abi::AppendArguments& args, const abi::AppendRows& rows, int32 token,
                            int32 piece, bool is_cache) {
    using Element = typename Config::Element;
    using Rows = Layout<Config, Job>;
    constexpr int kSteps = abi::append_at_once(Rows::kChunks);
    constexpr bool kComputesScales = Job::kScaleColumns != 0;
    const int32 lane = threadIdx.x % 32;
    const int32 first = piece * rows.steps * Rows::kRows + lane / Rows::kLanes;
    const InSequence in(args, token);

    typename Rows::Packed packed[kSteps];
    float given[kSteps];
    const Element* const source = static_cast<const Element*>(rows.source) +
                                  in.sequence * rows.source_sequence_stride +
                                  in.token * rows.source_token_stride;
    // The rows of some steps, `done` of which are behind.
    const auto load = [&](int32 done) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const int32 head = first + (done + step) * Rows::kRows;
            const bool is_there = done + step < rows.steps && head < rows.heads;
            if constexpr (!kComputesScales)
                given[step] = rows.scale && is_there ? rows.scale[head * rows.scale_stride] : 1.0f;
#pragma unroll
            for (int c = 0; c < Rows::kChunks; ++c)
                Rows::load(packed[step][c], source + head * rows.source_head_stride, c, is_there);
        }
    };
    load(0);

    uint32 status = 0;
    const TokenPlace place = place_of<Config>(args, token, status);
    if (!place.is_written) {
        if (lane == 0) report(args.batch, status);
        return;
    }
    Finish<Config, Job> finish;
    finish.load(args, rows, place.position);

    char* const target = static_cast<char*>(rows.target) +
                         ((is_cache ? place.outer : in.sequence) * rows.target_sequence_stride +
                          (is_cache ? place.offset : in.token) * rows.target_token_stride) *
                             Rows::kElementBytes;
#pragma unroll 1
    for (int32 done = 0;; load(done)) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            if (done + step >= rows.steps) break;
            const int32 head = first + (done + step) * Rows::kRows;
            const typename Rows::Row row = finish.apply(packed[step], args.eps);
            float inverse[Rows::kChunks];
            if constexpr (kComputesScales) {
                const auto scales = Scales<Config, Job>::of(row);
                if (head >= rows.heads) continue;
                scales.store(scale_place(rows, place) + head * rows.scale_head_stride,
                             rows.scale_block_stride);
                scales.invert(inverse);
            } else {
                if (head >= rows.heads) continue;
                const float one = rows.scale ? inverse_of(given[step], status) : 1.0f;
#pragma unroll
                for (int c = 0; c < Rows::kChunks; ++c) inverse[c] = one;
            }
            store_row<Config, Job>(target + head * rows.target_head_stride * Rows::kElementBytes, row,
                                   inverse, kComputesScales || rows.scale);
        }
        done += kSteps;
        if (done >= rows.steps) break;
    }
    report(args.batch, status);
}

// Latents with one scale of a token, which is both parts': a warp has them both.
template <class Config>
__device__ void append_latents(const abi::AppendArguments& args, int32 token) {
    using Element = typename Config::Element;
    using Latent = Layout<Config, ValueJob<Config>>;
    using Position = Layout<Config, KeyJob<Config>>;
    const int32 lane = threadIdx.x % 32;
    const InSequence in(args, token);
    const auto source = [&](const abi::AppendRows& rows) {
        return static_cast<const Element*>(rows.source) + in.sequence * rows.source_sequence_stride +
               in.token * rows.source_token_stride;
    };
    typename Latent::Packed packed_latent;
    typename Position::Packed packed_position;
#pragma unroll
    for (int c = 0; c < Latent::kChunks; ++c)
        Latent::load(packed_latent[c], source(args.v), c, lane < Latent::kLanes);
#pragma unroll
    for (int c = 0; c < Position::kChunks; ++c)
        Position::load(packed_position[c], source(args.k), c, lane < Position::kLanes);

    uint32 status = 0;
    const TokenPlace place = place_of<Config>(args, token, status);
    if (!place.is_written) {
        if (lane == 0) report(args.batch, status);
        return;
    }
    Finish<Config, ValueJob<Config>> finish_latent;
    Finish<Config, KeyJob<Config>> finish_position;
    finish_latent.load(args, args.v, place.position);
    finish_position.load(args, args.k, place.position);
    const typename Latent::Row latent = finish_latent.apply(packed_latent, args.eps);
    const typename Position::Row position = finish_position.apply(packed_position, args.eps);

    const uint32 largest = largest_over_lanes<32>(
        larger(lane < Latent::kLanes ? largest_of<Config, ValueJob<Config>>(latent) : 0,
               lane < Position::kLanes ? largest_of<Config, KeyJob<Config>>(position) : 0));
    const float scale = scale_of<ValueJob<Config>>(largest), inverse = __frcp_rn(scale);
    if (lane == 0) *scale_place(args.v, place) = scale;
    const auto target = [&](const abi::AppendRows& rows) {
        return static_cast<char*>(rows.target) + place.outer * rows.target_sequence_stride +
               place.offset * rows.target_token_stride;
    };
    const float inverses[2] = {inverse, inverse};  // of two chunks at most
    if (lane < Latent::kLanes) store_row<Config, ValueJob<Config>>(target(args.v), latent, inverses, true);
    if (lane < Position::kLanes) store_row<Config, KeyJob<Config>>(target(args.k), position, inverses, true);
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
    if constexpr (Config::joint_scale) {
        append_latents<Config>(args, token);
    } else {
        if constexpr (Config::columns_k > 0) {
            if (piece < args.k.pieces)
                return append_rows<Config, KeyJob<Config>>(args, args.k, token, piece, true);
            piece -= args.k.pieces;
        }
        append_rows<Config, ValueJob<Config>>(args, args.v, token, piece, true);
    }
}

}  // namespace attnsmith
