// Attention on mma.sync tensor cores for head dims of which no warp can hold 16 rows of O, sm_80 and up.
//
//   As in attention/mma/kernel.cuh a block has a tile of packed query rows, and K and V come in rings
//   (attention/mma/loads.cuh). But its warps divide the products in two ways, and the weights go from one to
//   the other through shared memory:
//
//     S = Q K^T      warps_q x warps_kv: a warp has 16 rows and a slice of the tile's keys
//     O += P V       a warp has all rows and a slice of V's columns
//
//     tile n:   K(n) ready │ S, mask, maxima ──> shared │ V(n) ready │ weights ──> shared │ O += P V(n)
//               start V(n-1+stages)                     │ start K(n+stages)               │
//
//   Of latent attention (Config::latent) V is a part of K, in one ring, and the rest of K, the columns of the
//   position, is in the other: Q has columns for either, K(n) and V(n) are ready together, and the next tile
//   is started where V(n-1+stages) is.
//
//   Where rows are cut (attention/cuts.cuh) their bits follow from tile_kv and warps_kv, which are the same
//   for tiles of any number of rows.
//
//   Three barriers a tile. The first also says that V(n-1) and the weights are free, the second that K(n) is,
//   where it is apart from V(n), and that all slices' maxima are there, the third that the weights are.
#pragma once

#include "attention/mma/attention.cuh"

namespace attnsmith {

template <class Config>
struct AttentionMmaWide : MmaAttention<Config, AttentionMmaWide<Config>> {
    using Base = MmaAttention<Config, AttentionMmaWide<Config>>;
    using Base::args, Base::lane, Base::logits, Base::mask, Base::memory, Base::pipeline, Base::product_scale,
        Base::tile, Base::warp_row;
    using Base::kQk, Base::kVo, Base::kWarpKeys, Base::kWarps, Base::kWidens, Base::kQueriesInRegisters,
        Base::kTokenScales;
    using typename Base::Element, typename Base::Loads, typename Base::Operands, typename Base::Pipeline;
    using WeightTile = SwizzledTile<Element, Config::tile_q, Config::tile_kv>;
    static constexpr int kRowTiles = Config::warps_q;                                // of 16 rows
    static constexpr int kColumns = abi::wide_columns(Config::head_dim_vo, kWarps);  // of V, a warp's
    static constexpr int kWeightBlocks = abi::mma_weight_blocks(Config::latent, Config::scale_blocks);
    static constexpr int kBlockColumns = kVo / kWeightBlocks;  // that have one scale
    static_assert(kWeightBlocks == 1 || (kColumns * kWarps == kVo && kBlockColumns % kColumns == 0),
                  "a warp's columns of V have one scale");
    static_assert(kWarpKeys % 16 == 0 || kWarpKeys == 8, "a warp takes 8 keys, or keys by 16");
    static_assert(!Config::latent || !kQueriesInRegisters, "latent queries are too many for registers");

    // A slice of 8 keys has one fragment, and each product would wait for the one before: two chains of them.
    static constexpr int kChains = kWarpKeys == 8 ? 2 : 1;
    using Logits = Accumulator<kWarpKeys>;
    using Output = typename Operands::template Output<kColumns>;

    // The warp's keys in Q K^T, and the first of its columns in P V.
    const int32 warp_slice = threadIdx.x / 32 / Config::warps_q;
    const int32 first_column = threadIdx.x / 32 * kColumns;

    float sum[2] = {0.0f, 0.0f};  // of the rows of S, of this thread's columns
    float maxima[kRowTiles][2];   // of the rows of O, of which the warp's rows of S are some
    Output o[kRowTiles] = {};
    RowUnit units[kRowTiles][kTokenScales ? 2 : 1];  // that the rows of o are in
    OperandA<kQueriesInRegisters ? kQk : 16> q;

    // With absolute_cuts: what was found before the rows' last cuts. Each warp has all maxima and sums.
    static constexpr bool kStatesInRegisters =
        abi::mma_states_in_registers(true, {.key_value = sizeof(typename Config::KeyValue)});
    FoldedTiles<Output, kWarps, kRowTiles, kStatesInRegisters> folded{memory + Config::layout.state};

    __device__ void begin() {
        if constexpr (Config::absolute_cuts) folded.begin();
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) maxima[t][0] = maxima[t][1] = -infinity();
    }

    __device__ void load_queries() {
        if constexpr (kQueriesInRegisters) {
#pragma unroll
            for (int k = 0; k < kQk / 16; ++k) Operands::load_queries(q[k], pipeline.queries(), warp_row, k);
        }
    }

    // One tile of keys.
    __device__ void step(Loads& loads, int32 n, Coverage coverage) {
        loads.before_scores(n);

        Logits s = {};
        multiply_queries(s, n);
        const int32 first_key = Loads::Blocks::first_key(n) + warp_slice * kWarpKeys;
        logits.apply(s, args, first_key);
        if (coverage == Coverage::partial) mask.apply(s, first_key);
        show_maxima(s, n);

        loads.before_values(n);
        weigh(s, n);
        __syncthreads();
        multiply_values(n);
    }

    // S = Q K^T for the warp's slice of keys. Of latent attention V is a part of K.
    __device__ void multiply_queries(Logits& s, int32 n) {
        if constexpr (Config::latent && Config::scale_blocks > 0 && sizeof(typename Config::Position) > 1) {
            multiply_blocks(s, n);
        } else {
            Logits chains[kChains] = {};
            if constexpr (Config::latent)
                add_products<kVo>(chains, pipeline.latent_queries(), pipeline.values(n));
            if constexpr (kQk > 0) add_products<kQk>(chains, pipeline.queries(), pipeline.keys(n));
            s = sum_of(chains);
            if constexpr (kWidens) s.scale(product_scale);
            if constexpr (kTokenScales) scale_columns(s, scales_of_slice(n, 0));
        }
    }

    // Blocks of the latent's columns have scales of their own; the position's have none, and are as q's.
    __device__ void multiply_blocks(Logits& s, int32 n) {
#pragma unroll
        for (int block = 0; block < kWeightBlocks; ++block) {
            Logits chains[kChains] = {};
            add_products<kBlockColumns>(chains, pipeline.latent_queries(), pipeline.values(n),
                                        block * (kBlockColumns / 16));
            add_scaled_columns(s, sum_of(chains), scales_of_slice(n, block));
        }
        s.scale(product_scale);
        if constexpr (kQk > 0) {
            Logits chains[kChains] = {};
            chains[0] = s;
            add_products<kQk>(chains, pipeline.queries(), pipeline.keys(n));
            s = sum_of(chains);
        }
    }

    static __device__ Logits sum_of(const Logits (&chains)[kChains]) {
        Logits sum = chains[0];
        if constexpr (kChains > 1) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[0][i] += chains[kChains - 1][0][i];
        }
        return sum;
    }

    // Where the scales begin of the warp's slice of tile n's keys; with latents those of a block.
    __device__ SharedAddress scales_of_slice(int32 n, int which) const {
        return pipeline.token_scales(n, which) + uint32(warp_slice * kWarpKeys * int32(sizeof(float)));
    }

    // The products of `Columns` of queries with those of the keys, from a step of 16 columns on.
    template <int Columns, class Queries, class Keys>
    __device__ void add_products(Logits (&s)[kChains], const Queries& queries, const Keys& keys,
                                 int first_step = 0) {
        const int32 warp_key = warp_slice * kWarpKeys;
        if constexpr (Keys::kElementBytes == 1) {
            add_widened_products<Columns>(s, queries, keys, first_step);
        } else if constexpr (kWarpKeys == 8) {
            // Two steps of 16 columns at a time; of an odd number the last by itself.
            const SharedAddress start = keys.chunk(warp_key + lane % 8, lane / 8);
            constexpr int kSteps = Columns / 16;
#pragma unroll
            for (int k = 0; k + 1 < kSteps; k += 2) {
                uint32 b[4];
                load_matrices(b, Keys::step(start, 0, k));
#pragma unroll
                for (int chain = 0; chain < 2; ++chain) {
                    uint32 here[4];
                    multiply(s[chain][0], query_fragment<false>(here, queries, k + chain), b[2 * chain],
                             b[2 * chain + 1]);
                }
            }
            if constexpr (kSteps % 2 == 1) {
                uint32 b[2], here[4];
                load_matrices(b, Keys::step(keys.chunk(warp_key + lane % 8, lane / 8 % 2), 0, kSteps - 1));
                multiply(s[0][0], query_fragment<false>(here, queries, kSteps - 1), b[0], b[1]);
            }
        } else {
            const SharedAddress start = keys.chunk(warp_key + lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
            for (int k = 0; k < Columns / 16; ++k) {
                uint32 here[4];
                const uint32(&a)[4] = query_fragment<false>(here, queries, k);
#pragma unroll
                for (int j = 0; j < kWarpKeys / 16; ++j) {
                    uint32 b[4];
                    load_matrices(b, Keys::step(start, j * 16, k));
                    multiply(s[0][2 * j], a, b[0], b[1]);
                    multiply(s[0][2 * j + 1], a, b[2], b[3]);
                }
            }
        }
    }

    // A load of stored keys brings four steps of 16 columns for a slice of 8, and two for more; past the last
    // step it has the last one again.
    template <int Columns, class Queries, class Keys>
    __device__ void add_widened_products(Logits (&s)[kChains], const Queries& queries, const Keys& keys,
                                         int first_step) {
        constexpr int kSteps = Columns / 16;
        constexpr int kTogether = kWarpKeys == 8 ? 4 : 2;
        const int32 warp_key = warp_slice * kWarpKeys;
        const int32 row = kWarpKeys == 8 ? lane % 8 : lane % 8 + lane / 16 * 8;
        const int32 of_lane = kWarpKeys == 8 ? lane / 8 : lane / 8 % 2;
#pragma unroll
        for (int k = 0; k < kSteps; k += kTogether) {
            uint32 a[kTogether][4];
#pragma unroll
            for (int step = 0; step < kTogether; ++step) {
                if (k + step >= kSteps) break;
                const uint32(&of_step)[4] = query_fragment<true>(a[step], queries, first_step + k + step);
#pragma unroll
                for (int i = 0; i < 4; ++i) a[step][i] = of_step[i];
            }
#pragma unroll
            for (int j = 0; j < (kWarpKeys + 8) / 16; ++j) {
                uint32 stored[4];
                load_matrices(stored,
                              keys.chunk(warp_key + j * 16 + row, first_step + min(k + of_lane, kSteps - 1)));
#pragma unroll
                for (int step = 0; step < kTogether; ++step) {
                    if (k + step >= kSteps) break;
                    if constexpr (kWarpKeys == 8) {
                        Operands::multiply_keys(s[step % kChains][0], a[step], stored[step]);
                    } else {
                        Operands::multiply_keys(s[0][2 * j], a[step], stored[step]);
                        Operands::multiply_keys(s[0][2 * j + 1], a[step], stored[2 + step]);
                    }
                }
            }
        }
    }

    // From registers, or to `here`.
    template <bool Widened, class Queries>
    __device__ const uint32 (&query_fragment(uint32 (&here)[4], const Queries& queries, int k) const)[4] {
        if constexpr (kQueriesInRegisters) {
            return q[k];
        } else {
            if constexpr (Widened)
                load_spread_query_fragment(here, queries, warp_row, k);
            else
                load_query_fragment(here, queries, warp_row, k);
            return here;
        }
    }

    // With keys, or values, as q is.
    static __device__ void multiply(float (&sums)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
        Config::Query::mma(sums, a, b0, b1);
    }

    // What each slice of keys has found of each row: its largest logit, and in the end its sum.
    __device__ float& of_slice(int32 slice, int32 row) const {
        return reinterpret_cast<float*>(memory + Config::layout.slices)[slice * Config::tile_q + row];
    }
    // With scales of tokens, the binary logarithm of its largest weight times the value's scale, where that
    // of the largest logit is 1.
    __device__ float& top_of_slice(int32 slice, int32 row) const {
        return of_slice(Config::warps_kv + slice, row);
    }

    __device__ void show_maxima(const Logits& s, int32 n) const {
        float top[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            top[i] = row_max(s.top(i, -infinity()));
            if (lane % 4 == 0) of_slice(warp_slice, warp_row + fragment_row(lane, i)) = top[i];
        }
        if constexpr (kTokenScales) show_top_weights(s, n, top);
    }

    __device__ void show_top_weights(const Logits& s, int32 n, const float (&maxima)[2]) const {
        constexpr int kEach = 2 * Logits::kRows;
        float top[2] = {-infinity(), -infinity()};
        s.for_each_columns([&](int column, const float(&x)[kEach]) {
            float2 largest = value_scales(n, column, 0);
#pragma unroll
            for (int block = 1; block < kWeightBlocks; ++block) {
                const float2 of_block = value_scales(n, column, block);
                largest = make_float2(fmaxf(largest.x, of_block.x), fmaxf(largest.y, of_block.y));
            }
            const float exponent[2] = {log2_approx(largest.x), log2_approx(largest.y)};
#pragma unroll
            for (int i = 0; i < kEach; ++i) {
                const float reference = maxima[i / 2] == -infinity() ? 0.0f : maxima[i / 2];
                top[i / 2] = fmaxf(top[i / 2], fmaf(x[i] - reference, args.scale_log2, exponent[i % 2]));
            }
        });
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            top[i] = row_max(top[i]);
            if (lane % 4 == 0) top_of_slice(warp_slice, warp_row + fragment_row(lane, i)) = top[i];
        }
    }

    // Those of two neighbouring keys of the thread's, as for_each_pair() names them.
    __device__ float2 value_scales(int32 n, int column, int block) const {
        return load_two_scales(scales_of_slice(n, Config::latent ? block : 1),
                               column + Logits::first_column());
    }

    // A row's largest weight times the value's scale in this tile, relative to its maximum.
    __device__ float top_weight(int32 row, float reference) const {
        float top = -infinity();
#pragma unroll
        for (int slice = 0; slice < Config::warps_kv; ++slice) {
            const float exponent =
                fmaf(of_slice(slice, row) - reference, args.scale_log2, top_of_slice(slice, row));
            top = fmaxf(top, exponent);
        }
        return exp2_approx(top);
    }

    // A row's maximum with this tile's keys, and what its sums and O have to be multiplied by then. A row
    // that saw nothing yet has the reference 0: exp2(-inf) is 0.
    struct Raised {
        float maximum, reference, rescale;
    };
    __device__ Raised raised(float before, int32 row) const {
        float top = before;
#pragma unroll
        for (int slice = 0; slice < Config::warps_kv; ++slice) top = fmaxf(top, of_slice(slice, row));
        const float reference = top == -infinity() ? 0.0f : top;
        return {top, reference, exp2_approx((before - reference) * args.scale_log2)};
    }

    // Logits to weights, for all warps to read; O is rescaled.
    __device__ void weigh(Logits& s, int32 n) {
        float rescale[kRowTiles][2];
        // What the warp's rows of S have. `own_inverse`: of the units that weights are rounded in.
        float own_reference[2], own_rescale[2], own_inverse[2] = {1.0f, 1.0f};
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const Raised to = raised(maxima[t][i], t * 16 + fragment_row(lane, i));
                maxima[t][i] = to.maximum;
                rescale[t][i] = to.rescale;
                float inverse = 1.0f;
                if constexpr (kTokenScales)
                    inverse = units[t][i].raise(top_weight(t * 16 + fragment_row(lane, i), to.reference),
                                                rescale[t][i]);
                if (t > 0 && warp_row != t * 16) continue;
                own_inverse[i] = inverse;
                own_reference[i] = to.reference;
                own_rescale[i] = to.rescale;
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32 row = warp_row + fragment_row(lane, i);
            sum[i] = __fmul_rn(sum[i], own_rescale[i]);
            s.for_each_run(i, [&](int run, int32 column, const float(&x)[2]) {
                float two[2];
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    two[c] = exp2_approx((x[c] - own_reference[i]) * args.scale_log2);
                    sum[i] += two[c];
                }
#pragma unroll
                for (int block = 0; block < kWeightBlocks; ++block) {
                    float of_block[2] = {two[0], two[1]};
                    if constexpr (kTokenScales) {
                        const float2 scales = value_scales(n, run * Logits::kRunPitch, block);
                        of_block[0] = scaled_weight(two[0], scales.x) * own_inverse[i];
                        of_block[1] = scaled_weight(two[1], scales.y) * own_inverse[i];
                    }
                    store_shared(weights(block).chunk(row, (warp_slice * kWarpKeys + column) / 8) +
                                     column % 8 * int32(sizeof(Element)),
                                 Element::pack(of_block[0], of_block[1]));
                }
            });
        }
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
            if (__any_sync(0xffffffffu, rescale[t][0] != 1.0f || rescale[t][1] != 1.0f))
                o[t].scale(rescale[t]);
        }
    }

    // Those that meet a block of V's columns.
    __device__ WeightTile weights(int block) const {
        constexpr int32 kBytes = Config::tile_q * Config::tile_kv * int32(sizeof(Element));
        return {pipeline.base + Config::layout.weights + block * kBytes};
    }

    // O += P V for the warp's slice of columns.
    __device__ void multiply_values(int32 n) {
        if constexpr (kWidens)
            multiply_widened_values(n);
        else
            multiply_stored_values(n);
    }

    // A load brings two blocks of 16 columns, or of the last one twice the same.
    __device__ void multiply_widened_values(int32 n) {
        const SharedAddress weights_start =
            weights(kWeightBlocks > 1 ? first_column / kBlockColumns : 0).chunk(lane % 16, lane / 16);
        const typename Pipeline::ValueTile values = pipeline.values(n);
        constexpr int kBlocks = kVo / 16;
#pragma unroll
        for (int j = 0; j < Config::tile_kv / 16; ++j) {
            uint32 p[kRowTiles][4];
#pragma unroll
            for (int t = 0; t < kRowTiles; ++t)
                load_matrices(p[t], WeightTile::step(weights_start, t * 16, j));
#pragma unroll
            for (int d = 0; d < kColumns / 16; d += 2) {
                const int32 block = first_column / 16 + d;
                if (kColumns * kWarps != kVo && block >= kBlocks) break;
                uint32 stored[4];
                load_matrices_transposed(
                    stored, values.chunk(j * 16 + lane % 16, min(block + lane / 16, kBlocks - 1)));
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    if (d + half >= kColumns / 16) break;
                    if (kColumns * kWarps != kVo && block + half >= kBlocks) break;
#pragma unroll
                    for (int t = 0; t < kRowTiles; ++t)
                        Operands::multiply_values(o[t], d + half, p[t], stored[2 * half],
                                                  stored[2 * half + 1]);
                }
            }
        }
    }

    __device__ void multiply_stored_values(int32 n) {
        using ValueTile = typename Pipeline::ValueTile;
        const SharedAddress weights_start = weights(0).chunk(lane % 16, lane / 16);
        const SharedAddress start = pipeline.values(n).chunk(lane % 16, first_column / 8 + lane / 16);
#pragma unroll
        for (int j = 0; j < Config::tile_kv / 16; ++j) {
            uint32 p[kRowTiles][4];
#pragma unroll
            for (int t = 0; t < kRowTiles; ++t)
                load_matrices(p[t], WeightTile::step(weights_start, t * 16, j));
#pragma unroll
            for (int d = 0; d < kColumns / 16; ++d) {
                if (kColumns * kWarps != kVo && first_column + d * 16 >= kVo) break;
                uint32 b[4];
                // Where a slice is whole panels the addresses of its columns differ by constants.
                load_matrices_transposed(
                    b,
                    kColumns % ValueTile::kColumns == 0
                        ? ValueTile::step(start, j * 16, d)
                        : pipeline.values(n).chunk(j * 16 + lane % 16, first_column / 8 + d * 2 + lane / 16));
#pragma unroll
                for (int t = 0; t < kRowTiles; ++t) {
                    multiply(o[t][2 * d], p[t], b[0], b[1]);
                    multiply(o[t][2 * d + 1], p[t], b[2], b[3]);
                }
            }
        }
    }

    // ---- what MmaAttention asks for ----

    static __device__ bool multiplies() { return true; }
    static __device__ int32 first_row() { return 0; }
    __device__ Output& sums(int t) { return o[t]; }
    __device__ RowUnit (&units_of(int t))[kTokenScales ? 2 : 1] { return units[t]; }
    __device__ float (&maximum(int t))[2] { return maxima[t]; }
    static __device__ bool has_folded() { return true; }

    // Over all slices of keys. All have read the last tile's maxima.
    __device__ void add_up(float (&total)[kRowTiles][2]) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float of_row = row_sum(sum[i]);
            if (lane % 4 == 0) of_slice(warp_slice, warp_row + fragment_row(lane, i)) = of_row;
        }
        __syncthreads();
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int32 in_tile = t * 16 + fragment_row(lane, i);
                total[t][i] = of_slice(0, in_tile);
#pragma unroll
                for (int slice = 1; slice < Config::warps_kv; ++slice)
                    total[t][i] += of_slice(slice, in_tile);
            }
        }
    }

    // By selection: behind a branch it would be computed ahead, and take registers that 16 rows of 512
    // columns and their states do not leave.
    __device__ void begin_again(int t, int i, bool here) {
        maxima[t][i] = here ? -infinity() : maxima[t][i];
        o[t].clear_row(i, here);
    }
    __device__ void go_on(int32 key) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            sum[i] = is_cut_before(key, args, tile.sequence, tile.row(warp_row + fragment_row(lane, i)).token)
                         ? 0.0f
                         : sum[i];
        }
    }
    static __device__ void finish(const typename Loads::Blocks&) {}

    __device__ void store_part(int32 place, const float (&total)[kRowTiles][2]) { store(place, total); }
    // As O, or as the partial results whose first row's place this is.
    __device__ void store(int32 place, const float (&total)[kRowTiles][2]) {
        const Epilogue<Config, Config::alignment> epilogue{args, tile.sequence};
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int32 in_tile = t * 16 + fragment_row(lane, i);
                epilogue.store_columns(tile.row(in_tile), place < 0 ? -1 : place + in_tile, first_column,
                                       o[t], i, maxima[t][i], total[t][i]);
            }
        }
    }
};

template <class Config>
__device__ void attention_mma(const abi::AttentionArguments& args) {
    attend_tiles<Config, AttentionMmaWide<Config>>(args);
}

}  // namespace attnsmith
