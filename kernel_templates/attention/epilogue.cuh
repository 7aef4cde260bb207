// The end of a row of O, for attention and merge kernels: its sink, its normalisation, its LSE, where it is
// stored and as what, and the partial results of a KV split. The kernels differ in who holds which columns.
#pragma once

#include "attention/stored_keys.cuh"
#include "attention/tiles.cuh"
#include "common/copy.cuh"
#include "common/element.cuh"
#include "common/fragment.cuh"
#include "common/math.cuh"
#include "common/swizzled_tile.cuh"

namespace attnsmith {

struct RowResult {
    float factor;  // what the unnormalised output is multiplied by
    float lse;     // base 2
};

// Closes a row with maximum m and sum l; `sink` is one more logit without a value, in base 2 (-inf: none). A
// row that saw nothing has m = -inf, l = 0 and gives factor 0 and lse = sink. (fmaxf passes over a NaN: a row
// of NaN alone has m = -inf as well, but its l is NaN.)
__device__ inline RowResult finish_row(float m, float l, float c, float sink) {
    if (m == -infinity() && sink == -infinity())
        return l == 0.0f ? RowResult{0.0f, -infinity()} : RowResult{not_a_number(), not_a_number()};
    const float above = fmaf(m, c, -sink);
    const bool is_top = above >= 0.0f;
    const float weight = is_top ? 1.0f : exp2_approx(above);
    // Spelled out, so that a row has the same bits whichever kernel closes it.
    const float total = fmaf(l, weight, is_top ? exp2_approx(-above) : 1.0f);
    return {weight * reciprocal(total), (is_top ? __fmul_rn(m, c) : sink) + log2_approx(total)};
}

// How values of O are stored in rows that are a multiple of `Alignment`: all that depends on the output's
// type is here. This is for types of 16 bits, two columns a register; another one is a specialisation.
template <class Output, int Alignment>
struct OutputStore {
    static_assert(sizeof(Output) == 2, "an output type of another size needs its own OutputStore");

    static constexpr int kAlignment = Alignment;
    static constexpr int kChunkColumns = 16 / int(sizeof(Output));

    // Two neighbouring columns.
    static __device__ void two(Output* target, float low, float high) {
        const uint32 packed = Output::pack(low, high);
        if constexpr (Alignment >= 4) {
            *reinterpret_cast<uint32*>(target) = packed;
        } else {
            target[0].bits = uint16(packed);
            target[1].bits = uint16(packed >> 16);
        }
    }

    // Eight neighbouring columns.
    static __device__ void eight(Output* target, const float (&x)[8]) {
        const uint32 packed[4] = {Output::pack(x[0], x[1]), Output::pack(x[2], x[3]),
                                  Output::pack(x[4], x[5]), Output::pack(x[6], x[7])};
        store_16_bytes<Alignment>(target, packed);
    }

    // A thread's columns of row i of sums, to a tile in shared memory, from which chunks are stored.
    template <class Tile, class Sums>
    static __device__ void stage(const Tile& tile, int32 tile_row, const Sums& o, int i, float factor) {
        o.for_each_run(i, [&](int, int32 column, const float(&x)[Sums::kRun]) {
            const SharedAddress target =
                tile.chunk(tile_row, column / kChunkColumns) + column % kChunkColumns * 2;
            const uint32 low = Output::pack(x[0] * factor, x[1] * factor);
            if constexpr (Sums::kRun == 2)
                store_shared(target, low);
            else
                store_shared_8_bytes(target, low | uint64(Output::pack(x[2] * factor, x[3] * factor)) << 32);
        });
    }

    // Row i of sums, its first columns, by the four lanes that share it, without shared memory. A null target
    // is not stored to.
    template <class Sums>
    static __device__ void exchange(Output* target, const Sums& o, int i, int32 columns = Sums::kAllColumns) {
        if constexpr (Sums::kRun == 2)
            trade(target, o, i, columns);
        else if (target != nullptr)
            store_runs(target, o, i, columns);
    }

  private:
    // Lanes trade pieces of two columns for whole chunks.
    template <class Sums>
    static __device__ void trade(Output* target, const Sums& o, int i, int32 columns) {
        constexpr int kChunks = Sums::kAllColumns / kChunkColumns;
        constexpr int kRounds = (kChunks + 3) / 4;
        static_assert(Sums::kRunPitch == kChunkColumns, "the four lanes have a chunk between them");
        uint32 chunk[kRounds][4];
        o.for_each_run(i, [&](int run, int32, const float(&x)[2]) {
            chunk[run / 4][run % 4] = Output::pack(x[0], x[1]);
        });
#pragma unroll
        for (int j = kChunks; j < kRounds * 4; ++j) chunk[j / 4][j % 4] = chunk[0][0];
        transpose_in_row(chunk);
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int32 mine = round * 4 + threadIdx.x % 4;
            if (target != nullptr && mine < kChunks && mine * kChunkColumns < columns)
                store_16_bytes<Alignment>(target + mine * kChunkColumns, chunk[round]);
        }
    }

    // The four lanes' runs of four columns are a whole sector together: there is nothing to trade.
    template <class Sums>
    static __device__ void store_runs(Output* target, const Sums& o, int i, int32 columns) {
        o.for_each_run(i, [&](int run, int32 column, const float(&x)[4]) {
            if (run * Sums::kRunPitch >= columns) return;
            Output* const place = target + column;
            if constexpr (Alignment >= 8) {
                *reinterpret_cast<uint2*>(place) =
                    make_uint2(Output::pack(x[0], x[1]), Output::pack(x[2], x[3]));
            } else {
                two(place, x[0], x[1]);
                two(place + 2, x[2], x[3]);
            }
        });
    }
};

// fp32, which is not rounded: an element a register.
template <int Alignment>
struct OutputStore<f32, Alignment> {
    static constexpr int kAlignment = Alignment < int(sizeof(f32)) ? int(sizeof(f32)) : Alignment;
    static constexpr int kChunkColumns = 16 / int(sizeof(f32));

    static __device__ void two(f32* target, float low, float high) {
        if constexpr (kAlignment >= 8) {
            *reinterpret_cast<float2*>(target) = make_float2(low, high);
        } else {
            target[0].value = low;
            target[1].value = high;
        }
    }

    static __device__ void eight(f32* target, const float (&x)[8]) {
#pragma unroll
        for (int chunk = 0; chunk < 8; chunk += kChunkColumns) {
            const uint32 bits[4] = {__float_as_uint(x[chunk]), __float_as_uint(x[chunk + 1]),
                                    __float_as_uint(x[chunk + 2]), __float_as_uint(x[chunk + 3])};
            store_16_bytes<kAlignment>(target + chunk, bits);
        }
    }

    template <class Tile, class Sums>
    static __device__ void stage(const Tile& tile, int32 tile_row, const Sums& o, int i, float factor) {
        o.for_each_run(i, [&](int, int32 column, const float(&x)[Sums::kRun]) {
            const SharedAddress target =
                tile.chunk(tile_row, column / kChunkColumns) + column % kChunkColumns * uint32(sizeof(f32));
            const uint64 low = bits(x[0] * factor, x[1] * factor);
            if constexpr (Sums::kRun == 2)
                store_shared_8_bytes(target, low);
            else
                store_shared_16_bytes(target, int64(low), int64(bits(x[2] * factor, x[3] * factor)));
        });
    }

    // Two columns are eight bytes, and the four lanes' together a whole sector: there is nothing to trade.
    template <class Sums>
    static __device__ void exchange(f32* target, const Sums& o, int i, int32 columns = Sums::kAllColumns) {
        if (target == nullptr) return;
        o.for_each_run(i, [&](int run, int32 column, const float(&x)[Sums::kRun]) {
            if (run * Sums::kRunPitch >= columns) return;
            if constexpr (Sums::kRun == 2) {
                two(target + column, x[0], x[1]);
            } else {
                const uint32 four[4] = {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                                        __float_as_uint(x[3])};
                store_16_bytes<kAlignment>(target + column, four);
            }
        });
    }

  private:
    static __device__ uint64 bits(float low, float high) {
        return __float_as_uint(low) | uint64(__float_as_uint(high)) << 32;
    }
};

// The end of rows of one sequence. `Alignment`: what the addresses of O's rows are a multiple of.
template <class Config, int Alignment>
struct Epilogue {
    using Output = typename Config::Output;
    using Store = OutputStore<Output, Alignment>;
    static constexpr int kColumns = Config::head_dim_vo;

    const abi::AttentionArguments& args;
    const Sequence& sequence;

    __device__ RowResult finish(const PackedRow& row, float maximum, float sum) const {
        const float c = args.scale_log2;
        const float sink = args.sinks && row.valid ? args.sinks[row.head] * kLog2e : -infinity();
        RowResult result = finish_row(maximum, sum, c, sink);
        if constexpr (Config::value_scale) {
            // A row that saw no key has nothing of the values, whatever their scale is.
            if (sum != 0.0f) result.factor *= stored_scale(args, args.v_scale, row.head / args.scale_group);
        }
        return result;
    }

    __device__ Output* output(const PackedRow& row) const {
        return static_cast<Output*>(args.o) + sequence.batch * args.o_batch_stride +
               (sequence.q_first + row.token) * args.o_token_stride + row.head * args.o_head_stride;
    }

    // REQUIRES: args.lse, which the caller asks for with what says who stores it.
    __device__ void store_lse(const PackedRow& row, const RowResult& result) const {
        args.lse[sequence.batch * args.lse_batch_stride +
                 (sequence.q_first + row.token) * args.lse_token_stride + row.head * args.lse_head_stride] =
            result.lse * kLn2;
    }

    // Where a split's result of the row lies among the partial results.
    __device__ int64 partial(const PackedRow& row, int32 split) const {
        return split * args.rows + sequence.partial_row(args, row.token, row.head);
    }

    __device__ void store_partial_ml(int64 partial, float maximum, float sum) const {
        reinterpret_cast<float2*>(args.partial_ml)[partial] = make_float2(maximum, sum);
    }

    // A thread's columns of row i of an accumulator, which may have more columns than O.
    template <class Sums>
    __device__ void store_partial_o(int64 partial, const Sums& o, int i) const {
        store_row(args.partial_o + partial * kColumns, o, i, kColumns);
    }

    // A thread's two rows of an accumulator as the partial results at place(row), not normalised.
    template <class Sums, class Place>
    __device__ void store_partial_rows(const PackedRow (&rows)[2], const Place& place, const Sums& o,
                                       const float (&maximum)[2], const float (&sum)[2]) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if (!rows[i].valid) continue;
            const int64 at = place(rows[i]);
            store_partial_o(at, o, i);
            if (threadIdx.x % 4 == 0) store_partial_ml(at, maximum[i], sum[i]);
        }
    }

    // A warp's 16 rows by way of a tile in shared memory, so that global stores are 16 bytes wide whatever
    // the alignment of an accumulator's columns.
    template <class Tile, class Sums>
    __device__ void store_staged(const QueryTile& tile, int32 warp_row, const Tile& staging, const Sums& o,
                                 const float (&maximum)[2], const float (&sum)[2]) const {
        const int32 lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32 in_tile = warp_row + fragment_row(lane, i);
            const PackedRow row = tile.row(in_tile);
            const RowResult result = finish(row, maximum[i], sum[i]);
            Store::stage(staging, in_tile, o, i, result.factor);
            if (args.lse && row.valid && lane % 4 == 0) store_lse(row, result);
        }
        __syncwarp();
        constexpr int kChunks = kColumns / Store::kChunkColumns;
#pragma unroll 1
        for (int32 i = lane; i < 16 * kChunks; i += 32) {
            const int32 in_tile = warp_row + i / kChunks;
            const PackedRow row = tile.row(in_tile);
            uint32 chunk[4];
            load_shared_16_bytes(chunk, staging.chunk(in_tile, i % kChunks));
            if (row.valid) {
                store_16_bytes<Store::kAlignment>(output(row) + i % kChunks * Store::kChunkColumns, chunk);
            }
        }
    }

    // A thread's two rows of an accumulator from registers, as O, or where they are a part of it as the
    // partial results at place(row). `correction`: what O and its sums have to be multiplied by to be
    // relative to `maximum`; the sums have been.
    template <class Sums, class Place>
    __device__ void store_exchanged(const PackedRow (&rows)[2], bool is_part, const Place& place, Sums& o,
                                    const float (&maximum)[2], const float (&sum)[2],
                                    const float (&correction)[2]) const {
        RowResult result[2];
        float factor[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            result[i] = finish(rows[i], maximum[i], sum[i]);
            factor[i] = is_part ? correction[i] : result[i].factor * correction[i];
        }
        o.scale(factor);  // in one place for both ways to store it
        if (is_part) {
            store_partial_rows(rows, place, o, maximum, sum);
            return;
        }
        if (args.lse && threadIdx.x % 4 == 0) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (rows[i].valid) store_lse(rows[i], result[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) Store::exchange(rows[i].valid ? output(rows[i]) : nullptr, o, i);
    }

    // Row i of an accumulator, whose columns are O's from `first` on, as O, or as the partial result of that
    // place, which is an int32 or, of chunks, an int64. By whole warps.
    template <class Sums, class Place>
    __device__ void store_columns(const PackedRow& row, Place place, int32 first, Sums& o, int i,
                                  float maximum, float sum) const {
        const int32 columns = kColumns - first;
        const bool tells_of_row = row.valid && first == 0 && threadIdx.x % 4 == 0;
        if (place >= 0) {
            if (row.valid) store_row(args.partial_o + int64(place) * kColumns + first, o, i, columns);
            if (tells_of_row) store_partial_ml(place, maximum, sum);
        } else {
            const RowResult result = finish(row, maximum, sum);
            o.scale_row(i, result.factor);
            Store::exchange(row.valid ? output(row) + first : nullptr, o, i, columns);
            if (args.lse && tells_of_row) store_lse(row, result);
        }
    }

    // Eight columns of a row from `column` on, as O, or as the partial result of that place.
    __device__ void store_eight(const PackedRow& row, int32 place, int32 column, float (&o)[8], float maximum,
                                float sum) const {
        if (place >= 0) {
            float4* target = reinterpret_cast<float4*>(args.partial_o + int64(place) * kColumns + column);
            target[0] = make_float4(o[0], o[1], o[2], o[3]);
            target[1] = make_float4(o[4], o[5], o[6], o[7]);
            if (column == 0) store_partial_ml(place, maximum, sum);
        } else {
            const RowResult result = finish(row, maximum, sum);
#pragma unroll
            for (int c = 0; c < 8; ++c) o[c] *= result.factor;
            Store::eight(output(row) + column, o);
            if (args.lse && column == 0) store_lse(row, result);
        }
    }
};

}  // namespace attnsmith
