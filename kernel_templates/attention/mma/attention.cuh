// What the mma kernels have in common: a tile of query rows goes through its keys, block by block, and is
// closed.
#pragma once

#include "attention/attend_tiles.cuh"
#include "attention/cuts.cuh"
#include "attention/epilogue.cuh"
#include "attention/logits.cuh"
#include "attention/mask.cuh"
#include "attention/mma/stored_operands.cuh"
#include "common/element.cuh"
#include "common/fragment.cuh"

namespace attnsmith {

// `Kernel` derives from this and has
//   begin()                          what rows have before their first key
//   load_queries()                   fragments of Q to registers, where these are kept there
//   step(loads, n, coverage)         a block of keys
//   multiplies()                     whether the thread has rows
//   first_row()                      of the tile's, the first of the thread's row tiles
//   sums(t), units_of(t), maximum(t) O of its row tiles, their units and the rows' maxima
//   folded, has_folded()             with absolute cuts: what was found before the rows' last cuts
//   add_up(sum)                      the softmax's sums, over all threads that have some of a row's keys
//   begin_again(t, i, here)          after a cut, row i of tile t, if it is cut here
//   go_on(key)                       then, for what it has of its own
//   finish(blocks)                   after the last key, by all threads
//   store_part(place, sum)           rows as partial results
//   store(place, sum)                rows at the end, as O or as partial results
template <class Config, class Kernel>
struct MmaAttention {
    using Operands = StoredOperands<Config>;
    using Element = typename Operands::Element;
    static constexpr bool kWidens = Operands::kWidens;
    using Pipeline = MmaPipeline<Config>;
    using Loads = MmaLoads<Config>;
    static constexpr int kQk = abi::padded_head_dim(Config::head_dim_qk);
    static constexpr int kVo = abi::padded_head_dim(Config::head_dim_vo);
    static constexpr int kWarps = Config::warps_q * Config::warps_kv;  // that multiply
    static constexpr int kWarpKeys = Config::tile_kv / Config::warps_kv;
    static constexpr bool kQueriesInRegisters = Config::queries_in_registers;
    static constexpr bool kTokenScales = Config::scale_blocks > 0;
    static_assert((sizeof(typename Config::KeyValue) == 1) == is_same<StageOf<Config>, DequantInRegisters>,
                  "8-bit keys are widened in registers, and no others");
    static_assert(Config::tile_q == 16 * Config::warps_q,
                  "a warp has 16 query rows: tile_q must be 16 * warps_q");
    static_assert(!Config::absolute_cuts || abi::kLeastCut % Config::tile_kv == 0,
                  "rows are cut behind whole tiles");

    const abi::AttentionArguments& args;
    const QueryTile& tile;
    const TilePart& part;
    char* const memory;
    const Pipeline pipeline{{SharedAddress::of(memory)}};
    const int32 lane = threadIdx.x % 32;
    const int32 warp_row = threadIdx.x / 32 % Config::warps_q * 16;  // the first of the warp's in Q K^T

    LogitTransform<Config> logits;
    FragmentMask mask;
    float product_scale[kWidens ? 2 : 1];  // of a row's products with stored keys

    __device__ void run(uint32& status) {
        using Folded = decltype(Kernel::folded);
        static_assert(Folded::kBytes <= Config::layout.share - Config::layout.state || !Config::absolute_cuts,
                      "the layout has room for the states of rows that are cut");
        Kernel& kernel = static_cast<Kernel&>(*this);
        TileMask tile_mask(tile);
        const auto places = places_of_part<Config>(tile, part, tile_mask);
        const KeyInterval& keys = tile_mask.read;
        // Asked for before the queries, since it comes as late.
        float stored_key_scale = 1.0f;
        if constexpr (kWidens && !kTokenScales) stored_key_scale = key_scale(args, tile.kv_head, status);
        const PackedRow rows[2] = {tile.row(warp_row + fragment_row(lane, 0)),
                                   tile.row(warp_row + fragment_row(lane, 1))};
        mask.set(args, tile.sequence, rows);
        logits.set(args, tile.sequence, rows);
        kernel.begin();  // after these: kernels of softcaps and odd head dims would spill
        Loads loads(pipeline, tile, keys, status);
        const typename Loads::Blocks blocks = loads.blocks;
        loads.start(tile);
        if constexpr (kQueriesInRegisters || kWidens) loads.await_queries();
        if constexpr (kWidens)
            Operands::prepare_queries(pipeline, memory, warp_row, stored_key_scale, product_scale);
        kernel.load_queries();
#pragma unroll 1
        for (int32 n = blocks.first; blocks.has(n); n = blocks.next(n)) {
            const int32 end = blocks.end_key(n);
            kernel.step(loads, n, blocks.coverage(n, tile_mask));
            if constexpr (Config::absolute_cuts) {
                if (end % abi::kLeastCut == 0 && blocks.has(blocks.next(n))) cut(end, places);
            }
        }
        copy_wait<0>();
        close(places, blocks);
    }

    // Before `key`, of a part that goes on behind it, rows are cut that have a cut there.
    __device__ void cut(int32 key, const PartPlaces& places) {
        Kernel& kernel = static_cast<Kernel&>(*this);
        if (!kernel.multiplies() || (places.are_apart() && key % places.length != 0)) return;
        float sum[Kernel::kRowTiles][2];
        kernel.add_up(sum);
        // Found again, not kept in registers while the keys went by.
        const int32 first_row = kernel.first_row();
        const auto is_cut = [&](int t, int i) {
            const PackedRow row = tile.row(first_row + t * 16 + fragment_row(lane, i));
            return is_cut_before(key, args, tile.sequence, row.token);
        };
        if constexpr (kTokenScales) {
            for_each_row<Kernel>(
                [&](int t, int i) { leave_unit(kernel.sums(t), i, kernel.units_of(t)[i], is_cut(t, i)); });
        }
        if (places.are_apart()) kernel.store_part(places.before(key), sum);
        for_each_row<Kernel>([&](int t, int i) {
            const bool here = is_cut(t, i);
            if (!places.are_apart())
                kernel.folded.of_tile(t).fold(i, here, kernel.sums(t), kernel.maximum(t)[i], sum[t][i],
                                              args.scale_log2);
            kernel.begin_again(t, i, here);
        });
        kernel.go_on(key);
    }

    template <class Places>
    __device__ void close(const Places& places, const typename Loads::Blocks& blocks) {
        Kernel& kernel = static_cast<Kernel&>(*this);
        const int32 end = blocks.first_key(blocks.end);
        kernel.finish(blocks);
        if (!kernel.multiplies()) return;
        float sum[Kernel::kRowTiles][2];
        kernel.add_up(sum);
#pragma unroll
        for (int t = 0; t < Kernel::kRowTiles; ++t) leave_units(kernel.sums(t), kernel.units_of(t));
        if constexpr (Config::absolute_cuts) {
            if (kernel.has_folded() && !places.are_apart()) {
#pragma unroll
                for (int t = 0; t < Kernel::kRowTiles; ++t)
                    kernel.folded.of_tile(t).close(kernel.sums(t), kernel.maximum(t), sum[t],
                                                   args.scale_log2);
            }
        }
        kernel.store(places.before(end), sum);
    }

  private:
    // f(row tile, row of the thread's two).
    template <class Rows, class F>
    static __device__ void for_each_row(const F& f) {
#pragma unroll
        for (int t = 0; t < Rows::kRowTiles; ++t) {
#pragma unroll
            for (int i = 0; i < 2; ++i) f(t, i);
        }
    }
};

}  // namespace attnsmith
