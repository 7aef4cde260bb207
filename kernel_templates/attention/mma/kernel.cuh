// Attention on mma.sync tensor cores, sm_80 and up: prefill and decode, contiguous or paged KV.
//
//   One block: a tile of packed query rows (token x query head of the group) of one sequence and KV head,
//   against the keys that these rows may see; or a share of such tiles (attention/shares.cuh).
//
//            global ──cp.async──> K ring, V ring (Config::stages each)      all threads load and compute
//     tile n:   K(n) ready │ S = Q K(n)^T   mask   online softmax │ V(n) ready │ O += P V(n)
//               start V(n-1+stages)                               │ start K(n+stages)
//
//   Two barriers a tile: the one before S also says that V(n-1) is free, the one before P V that K(n) is.
//   Warps: warps_q x warps_kv. Each warp has 16 rows and every warps_kv-th slice of a tile's keys; with
//   warps_kv > 1 (few rows: decode) each warp keeps a softmax of its own, and these are joined in shared
//   memory at the end. Key tiles lie at absolute multiples of tile_kv and are taken in ascending order.
//
//   Keys and values of 8 bits are widened by the warp that multiplies them
//   (attention/mma/stored_operands.cuh).
//
//   With Config::absolute_cuts a row's bits follow from the keys that it sees alone (attention/cuts.cuh): the
//   softmax takes so many keys at a time whatever a tile has, and no warps divide them.
#pragma once

#include "attention/join_warps.cuh"
#include "attention/mma/attention.cuh"
#include "attention/softmax/online.cuh"
#include "common/registers.cuh"

namespace attnsmith {

template <class Config>
struct AttentionMma : MmaAttention<Config, AttentionMma<Config>> {
    using Base = MmaAttention<Config, AttentionMma<Config>>;
    using Base::args, Base::lane, Base::logits, Base::mask, Base::memory, Base::part, Base::pipeline,
        Base::product_scale, Base::tile, Base::warp_row;
    using Base::kQk, Base::kVo, Base::kWarpKeys, Base::kWarps, Base::kWidens, Base::kQueriesInRegisters,
        Base::kTokenScales;
    using typename Base::Element, typename Base::Loads, typename Base::Operands, typename Base::Pipeline;
    static constexpr int kRowTiles = 1;
    // That the running softmax takes at a time.
    static constexpr int kStepKeys = Config::absolute_cuts ? abi::kSoftmaxKeys : kWarpKeys;
    static constexpr int kSteps = kWarpKeys / kStepKeys;
    static_assert(kWarpKeys % 16 == 0,
                  "a warp takes keys by 16: tile_kv must be a multiple of 16 * warps_kv");
    static_assert(Config::warps_kv == 1 || Config::warps_q == 1,
                  "warps split the queries or the keys, not both");
    static_assert(!Config::absolute_cuts || (kWarpKeys % kStepKeys == 0 && Config::warps_kv == 1),
                  "rows are cut by one warp");

    const int32 warp_key = threadIdx.x / 32 / Config::warps_q * kWarpKeys;

    using Logits = Accumulator<kStepKeys>;
    using Output = typename Operands::template Output<kVo>;
    OnlineSoftmax softmax;
    Output o = {};
    OperandA<kQueriesInRegisters ? kQk : 16> q;

    RowUnit units[kTokenScales ? 2 : 1];  // that the rows of o are in

    // With absolute_cuts.
    FoldedTiles<Output, kWarps, 1, false> folded{memory + Config::layout.state};
    bool is_cut = false;  // before the piece at hand

    __device__ void begin() {
        if (Config::absolute_cuts && multiplies()) folded.begin();
    }

    __device__ void load_queries() {
        if constexpr (kQueriesInRegisters) {
#pragma unroll
            for (int k = 0; k < kQk / 16; ++k) load_query(q[k], k);
        }
    }

    __device__ void load_query(uint32 (&fragment)[4], int k) const {
        Operands::load_queries(fragment, pipeline.queries(), warp_row, k);
    }

    // Else the warp takes part in loads alone.
    __device__ bool multiplies() const { return Config::load_warps == 0 || threadIdx.x < kWarps * 32; }

    // One tile of keys.
    __device__ void step(Loads& loads, int32 n, Coverage coverage) {
        loads.before_scores(n);

        Logits s[kSteps] = {};
        OperandA<kStepKeys> p;
        if (multiplies()) {
            multiply_queries(s, n);
#pragma unroll
            for (int i = 0; i < kSteps; ++i) {
                const int32 first_key = Loads::Blocks::first_key(n) + warp_key + i * kStepKeys;
                if constexpr (kWidens) s[i].scale(product_scale);
                if constexpr (kTokenScales) scale_columns(s[i], scales_of_step(n, i, 0));
                logits.apply(s[i], args, first_key);
                if (coverage == Coverage::partial) mask.apply(s[i], first_key);
            }
            weigh(s[0], p, n, 0);
        }

        loads.before_values(n);
        if (!multiplies()) return;
        multiply_values(p, n, 0);
#pragma unroll
        for (int i = 1; i < kSteps; ++i) {
            weigh(s[i], p, n, i);
            multiply_values(p, n, i);
        }
    }

    // Logits to the weights of a softmax step of tile n, of which O is rescaled.
    __device__ void weigh(Logits& s, OperandA<kStepKeys>& p, int32 n, int softmax_step) {
        if constexpr (kTokenScales) {
            float rescale[2];
            softmax.update(s, args.scale_log2, rescale);
            scale_weights(s, scales_of_step(n, softmax_step, 1), units, rescale);
            o.scale(rescale);
        } else {
            softmax.update(s, o, args.scale_log2);
        }
        p.template pack<Element>(s);
    }

    // Where the scales begin of the keys of a softmax step of tile n, or those of their values.
    __device__ SharedAddress scales_of_step(int32 n, int softmax_step, int which) const {
        return pipeline.token_scales(n, which) +
               uint32((warp_key + softmax_step * kStepKeys) * int32(sizeof(float)));
    }

    // S = Q K^T for the warp's slice of keys.
    __device__ void multiply_queries(Logits (&s)[kSteps], int32 n) {
        if constexpr (kWidens)
            multiply_widened_keys(s, n);
        else
            multiply_keys(s, n);
    }

    __device__ void multiply_keys(Logits (&s)[kSteps], int32 n) {
        const SharedAddress start = pipeline.keys(n).chunk(warp_key + lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
        for (int k = 0; k < kQk / 16; ++k) {
            uint32 here[4];
            if constexpr (!kQueriesInRegisters) load_query(here, k);
#pragma unroll
            for (int j = 0; j < kWarpKeys / 16; ++j) {
                uint32 b[4];
                load_matrices(b, Pipeline::KeyTile::step(start, j * 16, k));
                const uint32(&a)[4] = kQueriesInRegisters ? q[kQueriesInRegisters ? k : 0] : here;
                Logits& of_step = s[j * 16 / kStepKeys];
                const int first = j * 16 % kStepKeys / 8;
                Element::mma(of_step[first], a, b[0], b[1]);
                Element::mma(of_step[first + 1], a, b[2], b[3]);
            }
        }
    }

    // A load brings the keys of two steps of 16 columns; of an odd number the last comes by itself.
    __device__ void multiply_widened_keys(Logits (&s)[kSteps], int32 n) {
        const typename Pipeline::KeyTile keys = pipeline.keys(n);
        const SharedAddress start = keys.chunk(warp_key + lane % 8 + lane / 16 * 8, lane / 8 % 2);
        constexpr int kColumnSteps = kQk / 16;
#pragma unroll
        for (int k = 0; k + 1 < kColumnSteps; k += 2) {
            uint32 here[2][4];
            if constexpr (!kQueriesInRegisters) {
                load_query(here[0], k);
                load_query(here[1], k + 1);
            }
#pragma unroll
            for (int j = 0; j < kWarpKeys / 16; ++j) {
                uint32 stored[4];
                load_matrices(stored, Pipeline::KeyTile::step(start, j * 16, k / 2));
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const uint32(&a)[4] =
                        kQueriesInRegisters ? q[kQueriesInRegisters ? k + half : 0] : here[half];
                    multiply_stored(s, j, a, stored[half], stored[2 + half]);
                }
            }
        }
        if constexpr (kColumnSteps % 2 == 1) {
            constexpr int k = kColumnSteps - 1;
            uint32 here[4];
            if constexpr (!kQueriesInRegisters) load_query(here, k);
#pragma unroll
            for (int j = 0; j < kWarpKeys / 16; ++j) {
                uint32 stored[2];
                load_matrices(stored, keys.chunk(warp_key + j * 16 + lane % 16, k));
                const uint32(&a)[4] = kQueriesInRegisters ? q[kQueriesInRegisters ? k : 0] : here;
                multiply_stored(s, j, a, stored[0], stored[1]);
            }
        }
    }

    // The products of 16 columns with the j-th 16 keys of the warp's.
    __device__ void multiply_stored(Logits (&s)[kSteps], int j, const uint32 (&a)[4], uint32 low,
                                    uint32 high) {
        Logits& of_step = s[j * 16 / kStepKeys];
        const int first = j * 16 % kStepKeys / 8;
        Operands::multiply_keys(of_step[first], a, low);
        Operands::multiply_keys(of_step[first + 1], a, high);
    }

    // O += P V for a softmax step of the warp's slice of keys.
    __device__ void multiply_values(const OperandA<kStepKeys>& p, int32 n, int softmax_step) {
        if constexpr (kWidens)
            multiply_widened_values(p, n, softmax_step);
        else
            multiply_stored_values(p, n, softmax_step);
    }

    __device__ void multiply_widened_values(const OperandA<kStepKeys>& p, int32 n, int softmax_step) {
        const typename Pipeline::ValueTile values = pipeline.values(n);
        const int32 first_key = warp_key + softmax_step * kStepKeys;
        const SharedAddress start = values.chunk(first_key + lane % 16, lane / 16);
        constexpr int kBlocks = kVo / 16;
#pragma unroll
        for (int j = 0; j < kStepKeys / 16; ++j) {
#pragma unroll
            for (int d = 0; d + 1 < kBlocks; d += 2) {
                uint32 stored[4];
                load_matrices_transposed(stored, Pipeline::ValueTile::step(start, j * 16, d / 2));
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    Operands::multiply_values(o, d + half, p[j], stored[2 * half], stored[2 * half + 1]);
            }
            if constexpr (kBlocks % 2 == 1) {
                uint32 stored[2];
                load_matrices_transposed(stored, values.chunk(first_key + j * 16 + lane % 16, kBlocks - 1));
                Operands::multiply_values(o, kBlocks - 1, p[j], stored[0], stored[1]);
            }
        }
    }

    __device__ void multiply_stored_values(const OperandA<kStepKeys>& p, int32 n, int softmax_step) {
        const SharedAddress start =
            pipeline.values(n).chunk(warp_key + softmax_step * kStepKeys + lane % 16, lane / 16);
#pragma unroll
        for (int j = 0; j < kStepKeys / 16; ++j) {
#pragma unroll
            for (int d = 0; d < kVo / 16; ++d) {
                uint32 b[4];
                load_matrices_transposed(b, Pipeline::ValueTile::step(start, j * 16, d));
                Element::mma(o[2 * d], p[j], b[0], b[1]);
                if (d * 16 + 8 < Config::head_dim_vo) Element::mma(o[2 * d + 1], p[j], b[2], b[3]);
            }
        }
    }

    // ---- what MmaAttention asks for ----

    // Not kept in a register while the keys go by.
    __device__ int32 first_row() const {
        int32 first = warp_row;
        forget(first);
        return first;
    }
    __device__ Output& sums(int) { return o; }
    __device__ RowUnit (&units_of(int))[kTokenScales ? 2 : 1] { return units; }
    __device__ float (&maximum(int))[2] { return softmax.maximum; }
    __device__ bool has_folded() const { return is_cut; }

    __device__ void add_up(float (&sum)[1][2]) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) sum[0][i] = row_sum(softmax.sum[i]);
    }
    __device__ void begin_again(int, int i, bool here) {
        if (!here) return;
        softmax.begin(i);
        o.clear_row(i);
    }
    __device__ void go_on(int32) { is_cut = true; }

    // o takes the place of q, whose layout it need not share. Where no tile was taken, no barrier has said
    // yet that all threads' copies of q have landed and that all warps have read theirs.
    __device__ void finish(const typename Loads::Blocks& blocks) const {
        if (blocks.is_empty()) __syncthreads();
    }

    __device__ void store(int32 place, const float (&sum)[1][2]) const {
        if constexpr (Config::warps_kv > 1)
            join_warps(place, sum[0]);
        else
            store_rows(place, sum);
    }

    __device__ void store_part(int32 first_place, const float (&sum)[1][2]) const {
        const int32 first = first_row();
        const PackedRow rows[2] = {tile.row(first + fragment_row(lane, 0)),
                                   tile.row(first + fragment_row(lane, 1))};
        const auto place = [&](const PackedRow& row) { return first_place + tile.index(row); };
        const Epilogue<Config, Config::alignment> epilogue{args, tile.sequence};
        epilogue.store_partial_rows(rows, place, o, softmax.maximum, sum[0]);
    }

  private:
    __device__ void join_warps(int32 place, const float (&sum)[2]) const {
        const WarpJoin<Config> warps(memory);
        warps.reuse_key_values();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32 row = fragment_row(lane, i);
            store_row(warps.row_o(row), o, i);
            if (lane % 4 == 0) warps.row_ml(row) = make_float2(softmax.maximum[i], sum[i]);
        }
        warps.store(tile, place);
    }

    // `place`: of the part's first row, where it is not the whole tile.
    __device__ void store_rows(int32 place, const float (&sum)[1][2]) const {
        if (part.is_whole()) {
            const Epilogue<Config, Config::alignment> epilogue{args, tile.sequence};
            epilogue.store_staged(tile, first_row(), pipeline.output(), o, softmax.maximum, sum[0]);
        } else {
            store_part(place, sum);
        }
    }
};

template <class Config>
__device__ void attention_mma(const abi::AttentionArguments& args) {
    attend_tiles<Config, AttentionMma<Config>>(args);
}

}  // namespace attnsmith
