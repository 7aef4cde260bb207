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

#include "attention/attend_tiles.cuh"
#include "attention/cuts.cuh"
#include "attention/epilogue.cuh"
#include "attention/logits.cuh"
#include "attention/mask.cuh"
#include "attention/mma/stored_operands.cuh"
#include "common/element.cuh"

namespace attnsmith {

template <class Config>
struct AttentionMmaWide {
    using Operands = StoredOperands<Config>;
    using Element = typename Operands::Element;
    static constexpr bool kWidens = Operands::kWidens;
    using Pipeline = MmaPipeline<Config>;
    using Loads = MmaLoads<Config>;
    using WeightTile = SwizzledTile<Element, Config::tile_q, Config::tile_kv>;
    static constexpr int kQk = abi::padded_head_dim(Config::head_dim_qk);
    static constexpr int kVo = abi::padded_head_dim(Config::head_dim_vo);
    static constexpr int kWarps = Config::warps_q * Config::warps_kv;
    static constexpr int kRowTiles = Config::warps_q;  // of 16 rows
    static constexpr int kWarpKeys = Config::tile_kv / Config::warps_kv;
    static constexpr int kColumns = abi::wide_columns(Config::head_dim_vo, kWarps);  // of V, a warp's
    static constexpr bool kQueriesInRegisters = Config::queries_in_registers;
    static_assert(Config::tile_q == 16 * Config::warps_q,
                  "a warp has 16 query rows: tile_q must be 16 * warps_q");
    static_assert(kWarpKeys % 16 == 0 || kWarpKeys == 8, "a warp takes 8 keys, or keys by 16");
    static_assert(!Config::latent || !kQueriesInRegisters, "latent queries are too many for registers");
    static_assert(!Config::absolute_cuts || abi::kLeastCut % Config::tile_kv == 0,
                  "rows are cut behind whole tiles");

    // A slice of 8 keys has one fragment, and each product would wait for the one before: two chains of them.
    static constexpr int kChains = kWarpKeys == 8 ? 2 : 1;
    using Logits = Accumulator<kWarpKeys>;

    const abi::AttentionArguments& args;
    const QueryTile& tile;
    const TilePart& part;
    char* const memory;
    const Pipeline pipeline{{SharedAddress::of(memory)}};
    const int32 lane = threadIdx.x % 32;
    // The warp's rows and its keys in Q K^T, and the first of its columns in P V.
    const int32 warp_row = threadIdx.x / 32 % Config::warps_q * 16;
    const int32 warp_slice = threadIdx.x / 32 / Config::warps_q;
    const int32 first_column = threadIdx.x / 32 * kColumns;

    LogitTransform<Config> logits;
    FragmentMask mask;
    float sum[2] = {0.0f, 0.0f};  // of the rows of S, of this thread's columns
    float maximum[kRowTiles][2];  // of the rows of O, of which the warp's rows of S are some
    typename Operands::template Output<kColumns> o[kRowTiles] = {};
    float product_scale[kWidens ? 2 : 1];  // of a row's products with stored keys
    OperandA<kQueriesInRegisters ? kQk : 16> q;

    // With absolute_cuts: what was found before the rows' last cuts. Each warp has all maxima and sums.
    FoldedRegisters<kColumns> folded[kRowTiles];

    __device__ void run(uint32& status) {
        TileMask tile_mask(tile);
        const auto places = places_of_part<Config>(tile, part, tile_mask);
        const KeyInterval& keys = tile_mask.read;
        // Asked for before the queries, since it comes as late.
        float stored_key_scale;
        if constexpr (kWidens) stored_key_scale = key_scale(args, tile.kv_head, status);
        const PackedRow rows[2] = {tile.row(warp_row + fragment_row(lane, 0)),
                                   tile.row(warp_row + fragment_row(lane, 1))};
        mask.set(args, tile.sequence, rows);
        logits.set(args, tile.sequence, rows);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) maximum[t][0] = maximum[t][1] = -infinity();
        Loads loads(pipeline, tile, keys, status);
        const KeyInterval blocks = loads.blocks;
        loads.start(tile);
        if constexpr (kQueriesInRegisters || kWidens) loads.await_queries();
        if constexpr (kWidens)
            Operands::prepare_queries(pipeline, memory, warp_row, stored_key_scale, product_scale);
        if constexpr (kQueriesInRegisters) {
#pragma unroll
            for (int k = 0; k < kQk / 16; ++k) Operands::load_queries(q[k], pipeline.queries(), warp_row, k);
        }
#pragma unroll 1
        for (int32 n = blocks.first; n < blocks.end; ++n) {
            const int32 end = (n + 1) * Config::tile_kv;
            step(loads, n, tile_mask.hides_some_of(n * Config::tile_kv, end));
            if constexpr (Config::absolute_cuts) {
                if (end % abi::kLeastCut == 0 && n + 1 < blocks.end) cut(end, places);
            }
        }
        copy_wait<0>();
        close(places, blocks.end * Config::tile_kv);
    }

    // One tile of keys.
    __device__ void step(Loads& loads, int32 n, bool masked) {
        loads.before_scores(n);

        Logits s[kChains] = {};
        multiply_queries(s, n);
        const int32 first_key = n * Config::tile_kv + warp_slice * kWarpKeys;
        if constexpr (kWidens) s[0].scale(product_scale);
        logits.apply(s[0], args, first_key);
        if (masked) mask.apply(s[0], first_key);
        show_maxima(s[0]);

        loads.before_values(n);
        weigh(s[0]);
        __syncthreads();
        multiply_values(n);
    }

    // S = Q K^T for the warp's slice of keys. Of latent attention V is a part of K.
    __device__ void multiply_queries(Logits (&s)[kChains], int32 n) {
        if constexpr (Config::latent) add_products<kVo>(s, pipeline.latent_queries(), pipeline.values(n));
        if constexpr (kQk > 0) add_products<kQk>(s, pipeline.queries(), pipeline.keys(n));
        if constexpr (kChains > 1) {
#pragma unroll
            for (int i = 0; i < 4; ++i) s[0][0][i] += s[kChains - 1][0][i];
        }
    }

    // The products of `Columns` of queries with those of the keys.
    template <int Columns, class Queries, class Keys>
    __device__ void add_products(Logits (&s)[kChains], const Queries& queries, const Keys& keys) {
        const int32 warp_key = warp_slice * kWarpKeys;
        if constexpr (kWidens) {
            add_widened_products<Columns>(s, queries, keys);
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
                    multiply(s[chain][0], query_fragment(here, queries, k + chain), b[2 * chain],
                             b[2 * chain + 1]);
                }
            }
            if constexpr (kSteps % 2 == 1) {
                uint32 b[2], here[4];
                load_matrices(b, Keys::step(keys.chunk(warp_key + lane % 8, lane / 8 % 2), 0, kSteps - 1));
                multiply(s[0][0], query_fragment(here, queries, kSteps - 1), b[0], b[1]);
            }
        } else {
            const SharedAddress start = keys.chunk(warp_key + lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
            for (int k = 0; k < Columns / 16; ++k) {
                uint32 here[4];
                const uint32(&a)[4] = query_fragment(here, queries, k);
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
    __device__ void add_widened_products(Logits (&s)[kChains], const Queries& queries, const Keys& keys) {
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
                const uint32(&of_step)[4] = query_fragment(a[step], queries, k + step);
#pragma unroll
                for (int i = 0; i < 4; ++i) a[step][i] = of_step[i];
            }
#pragma unroll
            for (int j = 0; j < (kWarpKeys + 8) / 16; ++j) {
                uint32 stored[4];
                load_matrices(stored, keys.chunk(warp_key + j * 16 + row, min(k + of_lane, kSteps - 1)));
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
    template <class Queries>
    __device__ const uint32 (&query_fragment(uint32 (&here)[4], const Queries& queries, int k) const)[4] {
        if constexpr (kQueriesInRegisters) {
            return q[k];
        } else {
            Operands::load_queries(here, queries, warp_row, k);
            return here;
        }
    }

    static __device__ void multiply(float (&sums)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
        Element::mma(sums, a, b0, b1);
    }

    // What each slice of keys has found of each row: its largest logit, and in the end its sum.
    __device__ float& of_slice(int32 slice, int32 row) const {
        return reinterpret_cast<float*>(memory + Config::layout.slices)[slice * Config::tile_q + row];
    }

    __device__ void show_maxima(const Logits& s) const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float top = -infinity();
#pragma unroll
            for (int j = 0; j < kWarpKeys / 8; ++j) top = fmaxf(top, fmaxf(s[j][2 * i], s[j][2 * i + 1]));
            top = row_max(top);
            if (lane % 4 == 0) of_slice(warp_slice, warp_row + fragment_row(lane, i)) = top;
        }
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
    __device__ void weigh(Logits& s) {
        const WeightTile weights{pipeline.base + Config::layout.weights};
        float rescale[kRowTiles][2];
        float own_reference[2], own_rescale[2];  // of the warp's rows of S
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const Raised to = raised(maximum[t][i], t * 16 + fragment_row(lane, i));
                maximum[t][i] = to.maximum;
                rescale[t][i] = to.rescale;
                if (t > 0 && warp_row != t * 16) continue;
                own_reference[i] = to.reference;
                own_rescale[i] = to.rescale;
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32 row = warp_row + fragment_row(lane, i);
            sum[i] = __fmul_rn(sum[i], own_rescale[i]);
#pragma unroll
            for (int j = 0; j < kWarpKeys / 8; ++j) {
                float two[2];
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    two[c] = exp2_approx((s[j][2 * i + c] - own_reference[i]) * args.scale_log2);
                    sum[i] += two[c];
                }
                store_shared(weights.chunk(row, warp_slice * (kWarpKeys / 8) + j) + lane % 4 * 4,
                             Element::pack(two[0], two[1]));
            }
        }
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
            if (__any_sync(0xffffffffu, rescale[t][0] != 1.0f || rescale[t][1] != 1.0f))
                o[t].scale(rescale[t]);
        }
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
        const WeightTile weights{pipeline.base + Config::layout.weights};
        const SharedAddress weights_start = weights.chunk(lane % 16, lane / 16);
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
        const WeightTile weights{pipeline.base + Config::layout.weights};
        const SharedAddress weights_start = weights.chunk(lane % 16, lane / 16);
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

    // The sums of rows over all slices of keys. All have read the last tile's maxima.
    __device__ void add_slices(float (&total)[kRowTiles][2]) const {
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

    __device__ bool is_cut_before(int32 key, const PackedRow& row) const {
        return key % abi::cut_length(visible_keys(args, tile.sequence, row.token).end) == 0;
    }

    // Before `key`, of a part that goes on behind it, rows are cut that have a cut there. What changes is
    // selected: behind a branch it would be computed ahead, and take registers that 16 rows of 512 columns
    // beside their states do not leave.
    __device__ void cut(int32 key, const PartPlaces& places) {
        if (places.are_apart() && key % places.length != 0) return;
        float total[kRowTiles][2];
        add_slices(total);
        if (places.are_apart()) store_rows(places.before(key), total);
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const bool here = is_cut_before(key, tile.row(t * 16 + fragment_row(lane, i)));
                if (!places.are_apart())
                    folded[t].fold(i, here, o[t], maximum[t][i], total[t][i], args.scale_log2);
                maximum[t][i] = here ? -infinity() : maximum[t][i];
                o[t].clear_row(i, here);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            sum[i] = is_cut_before(key, tile.row(warp_row + fragment_row(lane, i))) ? 0.0f : sum[i];
        }
    }

    template <class Places>
    __device__ void close(const Places& places, int32 end) {
        float total[kRowTiles][2];
        add_slices(total);
        if constexpr (Config::absolute_cuts) {
            if (!places.are_apart()) {
#pragma unroll
                for (int t = 0; t < kRowTiles; ++t)
                    folded[t].close(o[t], maximum[t], total[t], args.scale_log2);
            }
        }
        store_rows(places.before(end), total);
    }

    // As O, or as the partial results whose first row's place this is.
    __device__ void store_rows(int32 place, const float (&total)[kRowTiles][2]) {
        const Epilogue<Config, Config::alignment> epilogue{args, tile.sequence};
#pragma unroll
        for (int t = 0; t < kRowTiles; ++t) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int32 in_tile = t * 16 + fragment_row(lane, i);
                epilogue.store_columns(tile.row(in_tile), place < 0 ? -1 : place + in_tile, first_column,
                                       o[t], i, maximum[t][i], total[t][i]);
            }
        }
    }
};

template <class Config>
__device__ void attention_mma(const abi::AttentionArguments& args) {
    attend_tiles<Config, AttentionMmaWide<Config>>(args);
}

}  // namespace attnsmith
