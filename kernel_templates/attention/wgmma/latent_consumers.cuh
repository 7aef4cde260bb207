// The roles of a wgmma CTA that multiply where it attends to latents: a warpgroup each, all with the same 64
// rows.
//
//   O of 64 rows and 512 columns is as large as half of all registers. So two warpgroups have half of its
//   columns each, and a third one makes the weights of all blocks, which go to the others through shared
//   memory: they take the place of the position's columns, which S alone is made of.
//
//     scores          S(0) │ softmax │ S(1)            │ softmax │ S(2)            │ softmax │ ...
//     values, each                   │ O += P(0) V(0)  │         │ O += P(1) V(1)  │ ...
//
//   So a block is done with soon after it has come, and nobody who waits for the next one keeps it.
#pragma once

#include "attention/epilogue.cuh"
#include "attention/softmax/lagging.cuh"
#include "attention/wgmma/pipeline.cuh"
#include "common/barrier.cuh"
#include "common/element.cuh"
#include "common/registers.cuh"
#include "common/wgmma.cuh"

namespace attnsmith {

// A tile's blocks, which its rows see, or one block that none sees.
template <class Config>
struct LatentBlocks {
    using Order = BlockOrder<Config>;

    const WarpgroupBlocks own;
    const int32 first, count;

    __device__ explicit LatentBlocks(const WorkTile& work)
        : own(work.warpgroup[0]),
          first(Order::first(work.blocks)),
          count(work.blocks.end - work.blocks.first) {}

    __device__ bool are_seen() const { return own.attended.first < own.attended.end; }
    __device__ int32 block(int32 i) const { return first + i * Order::kStep; }
    __device__ bool is_masked(int32 n) const { return n < own.unmasked.first || n >= own.unmasked.end; }
};

// Makes the weights.
template <class Config>
struct WgmmaLatentScores {
    using Pipeline = WgmmaPipeline<Config>;
    using KeyValue = typename Config::KeyValue;
    static constexpr int kKeys = Config::tile_kv;
    static_assert(kKeys * sizeof(KeyValue) == abi::kWgmmaPanelBytes, "weights of a row take a panel's row");
    static_assert(abi::wgmma_panels(Config::head_dim_qk, sizeof(KeyValue)) <= 1,
                  "one panel of the position's");
    static constexpr int32 kBarrier = 2;  // a named one, of the warpgroup
    static constexpr int kPieces = abi::wgmma_pieces(Config::shape);
    static constexpr int kPiecePanels =
        abi::wgmma_panels(abi::wgmma_piece_columns(Config::head_dim_vo), sizeof(KeyValue));

    const abi::WgmmaArguments& args;
    const Pipeline& pipeline;
    const int32 lane = threadIdx.x % 32;
    const int32 warp_row = threadIdx.x / 32 % 4 * 16;

    uint32 blocks = 0;  // of keys done with

    ThreadRows rows_of_thread;
    FragmentMask mask;
    LaggingSoftmax softmax{args};
    Accumulator<kKeys> s;
    OperandA<kKeys> p;

    __device__ void run() {
        rows_of_thread.set(args, warp_row);
#pragma unroll 1
        for (uint32 works = 0; const WorkTile* work = pipeline.take(works); ++works) {
            pipeline.queries(0).wait_full(typename Pipeline::QueryRing::Position(works));
            softmax.start();
            const LatentBlocks<Config> tile(*work);
#pragma unroll 1
            for (int32 i = 0; i < tile.count; ++i, ++blocks) {
                const typename Pipeline::KeyRing::Position at(blocks);
                if (tile.are_seen())
                    multiply_queries(at);
                else
                    let_pass(at);
                if (i == tile.count - 1) hand_over(pipeline.queries(0).empty(0));
                if (tile.are_seen()) weigh(*work, tile, tile.block(i), at.stage);
                hand_over(pipeline.weights(at.stage));
            }
            const uint32 stage = Pipeline::WorkRing::Position(works).stage;
            close(stage);
            pipeline.rows(stage).arrive();  // all lanes have written
            __syncwarp();
            if (lane == 0) pipeline.give_back(works);
        }
    }

    __device__ void hand_over(Barrier full) const {
        __syncwarp();
        if (lane == 0) full.arrive();
    }

    __device__ void weigh(const WorkTile& work, const LatentBlocks<Config>& tile, int32 n, uint32 stage) {
        if (tile.is_masked(n)) {
            const PackedRow rows[2] = {rows_of_thread.row(args, work, 0, 0),
                                       rows_of_thread.row(args, work, 0, 1)};
            mask.set(args.attention, work.sequence, rows);
            mask.apply(s, n * kKeys);
        }
        float reference[2];
        const bool rescales = softmax.take(s, reference);
        softmax.template weigh<0, kKeys / 8>(s, reference);
        p.template pack<KeyValue>(s);
        barrier_of(128, kBarrier);  // all four warps are done with the columns of the position
        const SharedAddress weights = pipeline.position(stage);
        const int32 row = warp_row + lane % 16;
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step) {
            const int32 chunk = step * 2 + lane / 16;
            store_matrices(weights + row * abi::kWgmmaPanelBytes + (chunk ^ row) % 8 * 16, p[step]);
        }
        abi::WgmmaBlockRows& told = pipeline.block_rows(stage);
        if (lane == 0) told.rescales[warp_row / 16] = rescales;
        if (rescales) tell_rescales(told);
        fence_async_proxy();
    }

    // Lane 0 writes it all, because it hands the weights over. There is seldom something to tell.
    __device__ void tell_rescales(abi::WgmmaBlockRows& told) const {
#pragma unroll 1
        for (int32 row = 0; row < 8; ++row) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float of_row = __shfl_sync(0xffffffffu, softmax.rescale[i], row * 4);
                if (lane == 0) told.rescale[warp_row + 8 * i + row] = of_row;
            }
        }
    }

    // S = Q K^T, by pieces of the columns as they come: by turns of the two halves, as they are given back.
    __device__ void multiply_queries(const typename Pipeline::KeyRing::Position& at) {
        const uint32 q = descriptor_start(pipeline.q(0)), k = descriptor_start(pipeline.k(at.stage)),
                     v = descriptor_start(pipeline.v(at.stage)),
                     position = descriptor_start(pipeline.position(at.stage));
        constexpr uint32 kOfQueries = kPiecePanels * Pipeline::kLayout.q_panel / 16;
        constexpr uint32 kOfKeys = kPiecePanels * Pipeline::kLayout.kv_panel / 16;
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
            pipeline.keys(piece).wait_full(at);
            wgmma_fence();
            if (piece == 0)
                Config::multiply_first_queries(s.values, q, k);
            else
                Config::multiply_more_queries(s.values, q + piece * kOfQueries, k + piece * kOfKeys);
            pipeline.values(piece).wait_full(at);
            wgmma_fence();
            Config::multiply_more_queries(s.values, q + (kPieces + piece) * kOfQueries, v + piece * kOfKeys);
        }
        if constexpr (Config::head_dim_qk > 0) {
            pipeline.position_full(at.stage).wait(at.phase);
            wgmma_fence();
            Config::multiply_positions(s.values, q + 2 * kPieces * kOfQueries, position);
        }
        wgmma_commit();
        wgmma_wait<0>();
        pin(s);
    }
    __device__ void let_pass(const typename Pipeline::KeyRing::Position& at) const {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
            pipeline.keys(piece).wait_full(at);
            pipeline.values(piece).wait_full(at);
        }
        if constexpr (Config::head_dim_qk > 0) pipeline.position_full(at.stage).wait(at.phase);
    }

    __device__ void close(uint32 stage) const {
        abi::WgmmaTileRows& told = pipeline.tile_rows(stage);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32 row = warp_row + fragment_row(lane, i);
            const float correction = softmax.correction(i), sum = row_sum(softmax.sum[i]) * correction;
            if (lane % 4 != 0) continue;
            told.maximum[row] = softmax.maximum(i);
            told.sum[row] = sum;
            told.correction[row] = correction;
        }
    }
};

// Has half of O's columns, in pieces: a product of all would take more registers than a thread has at launch.
template <class Config>
struct WgmmaLatentValues {
    using Pipeline = WgmmaPipeline<Config>;
    using KeyRing = typename Pipeline::KeyRing;
    static constexpr int kColumns = abi::wgmma_piece_columns(Config::head_dim_vo);
    static constexpr int kPieces = abi::wgmma_pieces(Config::shape);
    static constexpr uint32 kPieceBytes =
        abi::wgmma_panels(kColumns, sizeof(typename Config::KeyValue)) * Pipeline::kLayout.kv_panel;
    // TMA needs rows at multiples of 16 bytes, and so does the planner of this family.
    static constexpr int kAlignment = 16;
    static constexpr int kThreads = 256;
    static constexpr int32 kBarrier = 1;  // a named one, of both warpgroups

    const abi::WgmmaArguments& args;
    const Pipeline& pipeline;
    const bool second;  // half of the columns
    const int32 lane = threadIdx.x % 32;
    const int32 warp_row = threadIdx.x / 32 % 4 * 16;

    uint32 blocks = 0;  // of keys done with

    ThreadRows rows_of_thread;
    Accumulator<kColumns> o[kPieces];

    __device__ void run() {
        rows_of_thread.set(args, warp_row);
#pragma unroll 1
        for (uint32 works = 0; const WorkTile* work = pipeline.take(works); ++works) {
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece) o[piece].clear();
            const LatentBlocks<Config> tile(*work);
#pragma unroll 1
            for (int32 i = 0; i < tile.count; ++i, ++blocks)
                go_through(typename KeyRing::Position(blocks), tile.are_seen());
            const typename Pipeline::WorkRing::Position at(works);
            pipeline.rows(at.stage).wait(at.phase);
            close(*work, pipeline.tile_rows(at.stage));
            __syncwarp();
            if (lane == 0) pipeline.give_back(works);
        }
    }

    __device__ KeyRing ring(int piece) const {
        return second ? pipeline.values(piece) : pipeline.keys(piece);
    }

    // O += P V of a block, if its keys are seen. All that does not need the weights comes before them: with
    // the tensor core at work shared memory is slow to answer.
    __device__ void go_through(const typename KeyRing::Position& at, bool are_seen) {
        const uint32 weights = descriptor_start(pipeline.position(at.stage));
        const uint32 columns = descriptor_start(second ? pipeline.v(at.stage) : pipeline.k(at.stage),
                                                Pipeline::kLayout.kv_panel);
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) ring(piece).wait_full(at);
        pipeline.weights(at.stage).wait(at.phase);
        if (are_seen) {
            rescale(pipeline.block_rows(at.stage));
            wgmma_fence();
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece) {
                Config::multiply_values(o[piece].values, weights, columns + piece * (kPieceBytes / 16));
                wgmma_commit();
            }
        }
        give_back<0>(at.stage);
    }

    __device__ void rescale(const abi::WgmmaBlockRows& told) {
        if (!told.rescales[warp_row / 16]) return;
        const float rescale[2] = {told.rescale[warp_row + fragment_row(lane, 0)],
                                  told.rescale[warp_row + fragment_row(lane, 1)]};
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) o[piece].scale(rescale);
    }

    // Each piece as soon as its product is done.
    template <int Piece>
    __device__ void give_back(uint32 stage) {
        if constexpr (Piece < kPieces) {
            wgmma_wait<kPieces - 1 - Piece>();
            pin(o[Piece]);
            __syncwarp();
            if (lane == 0) ring(Piece).empty(stage).arrive();
            give_back<Piece + 1>(stage);
        }
    }

    __device__ void close(const WorkTile& work, const abi::WgmmaTileRows& told) {
        const Epilogue<Config, kAlignment> epilogue{args.attention, work.sequence};
        const GroupPartTile tile = work.rows(args, 0, 1);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32 in_tile = warp_row + fragment_row(lane, i);
            const PackedRow row = rows_of_thread.row(args, work, 0, i);
            const int32 place = work.part.is_whole() ? -1 : work.part.place + tile.index(row);
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece) {
                o[piece].scale_row(i, told.correction[in_tile]);
                epilogue.store_columns(row, place, (second * kPieces + piece) * kColumns, o[piece], i,
                                       told.maximum[in_tile], told.sum[in_tile]);
            }
        }
        if (!work.part.is_whole()) join(work, tile);
    }

    __device__ void join(const WorkTile& work, const GroupPartTile& tile) const {
        const TileParts parts = work.parts;
        const auto joiners =
            joiners_of<kThreads>(pipeline.share().slices[0], [] { barrier_of(kThreads, kBarrier); });
        join_rows<Config, kAlignment>(tile, parts, work.part, parts.first, 0, joiners);
    }
};

}  // namespace attnsmith
