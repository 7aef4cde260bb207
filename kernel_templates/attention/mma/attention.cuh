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

namespace attnsmith {

// `Kernel` derives from this and has
//   begin()                          what rows have before their first key
//   load_queries()                   fragments of Q to registers, where these are kept there
//   step(loads, n, coverage)         a block of keys
//   cut(key, places)                 before `key`, of a part that goes on behind it
//   close(places, blocks)            behind the last key of these blocks
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
        Kernel& kernel = static_cast<Kernel&>(*this);
        TileMask tile_mask(tile);
        const auto places = places_of_part<Config>(tile, part, tile_mask);
        const KeyInterval& keys = tile_mask.read;
        // Asked for before the queries, since it comes as late.
        float stored_key_scale = 1.0f;
        if constexpr (kWidens && !kTokenScales) stored_key_scale = key_scale(args, tile.kv_head, status);
        const PackedRow rows[2] = {tile.row(warp_row + fragment_row(lane, 0)),
                                   tile.row(warp_row + fragment_row(lane, 1))};
        kernel.begin();
        mask.set(args, tile.sequence, rows);
        logits.set(args, tile.sequence, rows);
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
                if (end % abi::kLeastCut == 0 && blocks.has(blocks.next(n))) kernel.cut(end, places);
            }
        }
        copy_wait<0>();
        kernel.close(places, blocks);
    }
};

}  // namespace attnsmith
