// Attention on CUDA cores, sm_80 and up: products, weights and sums in fp32, for precision "high". Prefill
// and decode, contiguous or paged KV.
//
//   One block: a tile of packed query rows (token x query head of the group) of one sequence and KV head,
//   against the keys that these rows may see; or a share of such tiles (attention/shares.cuh).
//
//            global ──cp.async──> ring of K and V (Config::stages tiles)      all threads load and compute
//     tile n ready:   start n - 1 + stages │ logits = Q K(n)^T │ mask, online softmax │ O += P V(n)
//
//   Warps: warps_q x warps_kv. Each warp has `rows` rows and every warps_kv-th slice of a tile's keys. Lanes
//   have eight columns each of Q, in registers as fp32, and of O; a row of K or V is spread over as many
//   lanes as it has chunks of eight columns. Between the two products the logits pass through shared memory,
//   where a lane takes those of one row: one lane has one row's maximum and sum. With warps_kv > 1 each warp
//   keeps a softmax of its own, and these are joined in shared memory at the end. Key tiles lie at absolute
//   multiples of tile_kv and are taken in ascending order.
//
//   What bounds it: a key costs a row 2 (head_dim_qk + head_dim_vo) FLOPs and the warp one conversion an
//   element, so that 1 to 4 rows are bound by memory, and 8 by arithmetic.
#pragma once

#include "abi/attention_cuda_core.h"
#include "attention/attend_tiles.cuh"
#include "attention/block_cursor.cuh"
#include "attention/cuda_core/lanes.cuh"
#include "attention/epilogue.cuh"
#include "attention/join_warps.cuh"
#include "attention/key_value_loader.cuh"
#include "attention/logits.cuh"
#include "attention/mask.cuh"
#include "common/element.cuh"

namespace attnsmith {

template <class Config>
struct AttentionCudaCore {
    using Stages = KeyValueStages<Config>;
    using Loader = KeyValueLoader<Config>;
    using Blocks = AscendingBlocks<Config::tile_kv>;
    static constexpr int kRows = Config::rows;
    static constexpr int kWarpKeys = Config::tile_kv / Config::warps_kv;
    using LogitLanes = KeyLanes<Config::head_dim_qk, kWarpKeys>;
    using OutputLanes = KeyLanes<Config::head_dim_vo, kWarpKeys>;
    using LogitSums = RowSums<kRows, LogitLanes::kWidth>;
    static constexpr int kRowLanes = 32 / kRows;                                // of the softmax, a row
    static constexpr int kRowLogits = (kWarpKeys + kRowLanes - 1) / kRowLanes;  // of each
    static constexpr int kLoads =
        kRows < 8 ? 4 : 2;  // from shared memory under way: eight rows have no more registers
    static constexpr int kPublished = Config::stages;  // tiles from the one at hand to the one published
    static_assert(kRows == 1 || kRows == 2 || kRows == 4 || kRows == 8, "rows divide a warp's lanes");
    static_assert(Config::tile_q == kRows * Config::warps_q, "a warp has `rows` query rows");
    static_assert(kWarpKeys >= 4 && (kWarpKeys & (kWarpKeys - 1)) == 0, "lanes divide a warp's keys");
    static_assert(Config::warps_kv == 1 || Config::warps_q == 1,
                  "warps split the queries or the keys, not both");
    static_assert(Config::stages >= 2, "the ring's next tile is loaded while one is at hand");

    const abi::AttentionArguments& args;
    const QueryTile& tile;
    const TilePart& part;
    char* const memory;
    const Stages stages{SharedAddress::of(memory)};
    const int32 lane = threadIdx.x % 32;
    const int32 warp_row = threadIdx.x / 32 % Config::warps_q * kRows;
    const int32 warp_key = threadIdx.x / 32 / Config::warps_q * kWarpKeys;

    float q[kRows][8];
    float o[kRows][8] = {};
    // A lane makes weights of one row only, lane % kRows.
    RowLogit<Config> row;
    KeyInterval seen;
    float maximum = -infinity();
    float sum = 0.0f;  // of this lane's keys only, until close()

    __device__ void run(uint32& status) {
        TileMask mask(tile);
        mask.keep<Config::tile_kv>(part);
        const Blocks blocks(mask.read);
        Loader loader(stages, tile, mask.read, status);
        start(loader, blocks);
        set_row(tile.row(warp_row + lane % kRows));
        load_queries();
        for (int32 n = blocks.first; blocks.has(n); n = blocks.next(n)) {
            copy_wait<Config::stages - 2>();
            __syncthreads();  // tile n is there for all, and all are done with tile n - 1
            load(loader, blocks, blocks.ahead(n - 1, Config::stages));
            multiply_queries(n);
            __syncwarp();
            take_weights(blocks.first_key(n) + warp_key, blocks.coverage(n, mask));
            __syncwarp();
            multiply_values(n);
            loader.publish_next(blocks.ahead(n, kPublished));
        }
        copy_wait<0>();
        close();
    }

    // The weights of this warp's keys, as [key][row]; the warp writes and reads only its own.
    __device__ float* weights() const {
        return reinterpret_cast<float*>(memory + Config::layout.weights) +
               threadIdx.x / 32 * (kWarpKeys * kRows);
    }

    __device__ void set_row(const PackedRow& packed) {
        row.set(args, tile.sequence, packed);
        seen = visible_keys(args, tile.sequence, packed.token);
        if (!packed.valid) seen.end = 0;
    }

    // The first stages - 1 tiles; a group of copies for each, whether there is one or not.
    __device__ void start(Loader& loader, const Blocks& blocks) {
        loader.template publish_first<kPublished>(blocks.first);
        if constexpr (Config::paged) __syncthreads();
#pragma unroll 1
        for (int i = 0; i < Config::stages - 1; ++i) load(loader, blocks, blocks.ahead(blocks.first, i));
    }

    __device__ void load(const Loader& loader, const Blocks& blocks, int32 n) const {
        if (blocks.has(n)) {
            loader.load_k(n);
            loader.load_v(n);
        }
        copy_commit();
    }

    __device__ void load_queries() {
        using Query = typename Config::Query;
        const LogitLanes lanes;
        const Sequence& sequence = tile.sequence;
        const Query* base = static_cast<const Query*>(args.q) + sequence.batch * args.q_batch_stride;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
            const PackedRow row = tile.row(warp_row + r);
            Eight chunk{};
            if (row.valid && lanes.has_columns()) {
                load_16_bytes<Config::alignment>(chunk.packed,
                                                 base + (sequence.q_first + row.token) * args.q_token_stride +
                                                     row.head * args.q_head_stride + lanes.chunk * 8);
            }
            chunk.unpack<Query>(q[r]);
        }
    }

    // The logits of the warp's keys, to shared memory.
    __device__ void multiply_queries(int32 n) const {
        constexpr int kTogether = LogitLanes::kSteps < kLoads ? LogitLanes::kSteps : kLoads;
        const LogitLanes lanes;
        const auto keys = stages.keys(n);
        float* const logits = weights();
#pragma unroll 1
        for (int first = 0; first < LogitLanes::kSteps; first += kTogether) {
            Eight chunk[kTogether] = {};
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                if (lanes.has_columns())
                    chunk[i].load(
                        keys.chunk(warp_key + (first + i) * LogitLanes::kAtOnce + lanes.key, lanes.chunk));
            }
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                float k[8];
                chunk[i].template unpack<typename Config::KeyValue>(k);
                float x[kRows];
#pragma unroll
                for (int r = 0; r < kRows; ++r) {
                    x[r] = q[r][0] * k[0];
#pragma unroll
                    for (int c = 1; c < 8; ++c) x[r] = fmaf(q[r][c], k[c], x[r]);
                }
                LogitSums::reduce(x);
                if (!LogitSums::is_first_copy()) continue;
                const int32 key = (first + i) * LogitLanes::kAtOnce + lanes.key;
#pragma unroll
                for (int r = 0; r < LogitSums::kRowsLeft; ++r)
                    logits[key * kRows + LogitSums::first_row() + r] = x[r];
            }
        }
    }

    // Whether there is an i-th key for this lane's row.
    __device__ bool has_key(int i) const {
        return kWarpKeys % kRowLanes == 0 || lane / kRows + i * kRowLanes < kWarpKeys;
    }

    // Logits to weights, in shared memory. A lane has one row, and every kRowLanes-th key from `first_key`
    // on.
    __device__ void take_weights(int32 first_key, Coverage coverage) {
        float* const mine = weights() + lane;  // its first key's
        float x[kRowLogits];
        float top = maximum;
#pragma unroll
        for (int i = 0; i < kRowLogits; ++i) {
            x[i] = -infinity();
            if (!has_key(i)) continue;
            const int32 key = first_key + lane / kRows + i * kRowLanes;
            const float logit = row.template apply<PreciseTanh>(mine[i * 32], args, row.distance(key));
            if (coverage == Coverage::full || (key >= seen.first && key < seen.end)) x[i] = logit;
            top = fmaxf(top, x[i]);
        }
#pragma unroll
        for (int distance = kRows; distance < 32; distance *= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
        const float reference = top == -infinity() ? 0.0f : top;  // a row that saw nothing yet
        const float rescale = exp2_approx((maximum - reference) * args.scale_log2);
        maximum = top;
        sum *= rescale;
        float added = 0.0f;
#pragma unroll
        for (int i = 0; i < kRowLogits; ++i) {
            x[i] = exp2_approx((x[i] - reference) * args.scale_log2);
            added += x[i];
            if (has_key(i)) mine[i * 32] = x[i];
        }
        sum += added;
        if (__any_sync(0xffffffffu, rescale != 1.0f)) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const float factor = __shfl_sync(0xffffffffu, rescale, r);
#pragma unroll
                for (int c = 0; c < 8; ++c) o[r][c] *= factor;
            }
        }
    }

    __device__ void multiply_values(int32 n) {
        constexpr int kTogether = OutputLanes::kSteps < kLoads ? OutputLanes::kSteps : kLoads;
        const OutputLanes lanes;
        const auto values = stages.values(n);
        const float* const by_key = weights();
#pragma unroll 1
        for (int first = 0; first < OutputLanes::kSteps; first += kTogether) {
            Eight chunk[kTogether] = {};
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                if (lanes.has_columns())
                    chunk[i].load(
                        values.chunk(warp_key + (first + i) * OutputLanes::kAtOnce + lanes.key, lanes.chunk));
            }
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                float v[8];
                chunk[i].template unpack<typename Config::KeyValue>(v);
                const float* const p = by_key + ((first + i) * OutputLanes::kAtOnce + lanes.key) * kRows;
#pragma unroll
                for (int r = 0; r < kRows; ++r) {
#pragma unroll
                    for (int c = 0; c < 8; ++c) o[r][c] = fmaf(p[r], v[c], o[r][c]);
                }
            }
        }
    }

    __device__ void close() {
        const OutputLanes lanes;
#pragma unroll
        for (int distance = OutputLanes::kWidth; distance < 32; distance *= 2) {
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
#pragma unroll
                for (int c = 0; c < 8; ++c) o[r][c] += __shfl_xor_sync(0xffffffffu, o[r][c], distance);
            }
        }
#pragma unroll
        for (int distance = kRows; distance < 32; distance *= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        // Lanes that had the same columns of other keys take turns at the rows.
        const auto is_mine = [&](int r) {
            return r % OutputLanes::kAtOnce == lanes.key && lanes.has_columns();
        };
        if constexpr (Config::warps_kv > 1) {
            const WarpJoin<Config> warps(memory);
            warps.reuse_key_values();
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                if (!is_mine(r)) continue;
                float4* const target = reinterpret_cast<float4*>(warps.row_o(r) + lanes.chunk * 8);
                target[0] = make_float4(o[r][0], o[r][1], o[r][2], o[r][3]);
                target[1] = make_float4(o[r][4], o[r][5], o[r][6], o[r][7]);
            }
            if (lane < kRows) warps.row_ml(lane) = make_float2(maximum, sum);
            warps.store(tile, part.place);
        } else {
            const Epilogue<Config, Config::alignment> epilogue{args, tile.sequence};
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
                const float row_maximum = __shfl_sync(0xffffffffu, maximum, r);
                const float row_sum = __shfl_sync(0xffffffffu, sum, r);
                const PackedRow row = tile.row(warp_row + r);
                const int32 place = part.is_whole() ? -1 : part.place + warp_row + r;
                if (is_mine(r) && row.valid)
                    epilogue.store_eight(row, place, lanes.chunk * 8, o[r], row_maximum, row_sum);
            }
        }
    }
};

template <class Config>
__device__ void attention_cuda_core(const abi::AttentionArguments& args) {
    attend_tiles<Config, AttentionCudaCore<Config>>(args);
}

}  // namespace attnsmith
