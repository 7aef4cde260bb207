// The roles of a wide CTA that multiply: a warpgroup each, all with the same 64 rows.
//
//   O of 64 rows and 512 columns is as large as half of all registers. So two warpgroups have half of its
//   columns each, and a third one makes the weights of all blocks, which go to the others through shared
//   memory: with latents they take the place of the position's columns, which S alone is made of.
//
//     scores          S(0) │ softmax │ S(1)            │ softmax │ S(2)            │ softmax │ ...
//     values, each                   │ O += P(0) V(0)  │         │ O += P(1) V(1)  │ ...
//
//   So a block is done with soon after it has come, and nobody who waits for the next one keeps it.
#pragma once

#include "attention/epilogue.cuh"
#include "attention/logits.cuh"
#include "attention/persistent/pipeline.cuh"
#include "attention/softmax/lagging.cuh"
#include "attention/stored_keys.cuh"
#include "common/barrier.cuh"
#include "common/element.cuh"
#include "common/registers.cuh"
#include "common/wgmma.cuh"
#include "common/wgmma_product.cuh"

namespace attnsmith {

// A tile's blocks, which its rows see, or one block that none sees.
template <class Config>
struct WideBlocks {
    const WarpgroupBlocks own;
    const int32 first, count;

    __device__ explicit WideBlocks(const WorkTile& work)
        : own(work.warpgroup[0]),
          first(first_block<Config>(work.blocks)),
          count(work.blocks.end - work.blocks.first) {}

    __device__ int32 block(int32 i) const { return first + i * kBlockStep<Config>; }
    __device__ bool are_seen() const { return own.has_any(); }
};

// Makes the weights.
template <class Config>
struct WgmmaWideScores {
    using Pipeline = PersistentPipeline<Config>;
    static constexpr bool kIsQuantized = StageOf<Config>::kIsQuantized;
    using Element = OperandElement<Config>;
    static constexpr bool kConvertsQueries = !is_same<typename Config::Query, Element>;
    static constexpr int kKeys = Config::tile_kv;
    static_assert(kKeys * kOperandBytes<Config> == abi::kPanelBytes, "weights of a row take a panel's row");
    static_assert(!Config::latent || abi::panels_of(Config::head_dim_qk, kOperandBytes<Config>) <= 1,
                  "one panel of the position's");
    static constexpr int32 kBarrier = 2;  // a named one, of the warpgroup
    static constexpr int kPieces = abi::column_pieces(Config::shape, false);
    static constexpr uint32 kPiecePanels =
        abi::panels_of(abi::piece_columns(Config::shape, false), kOperandBytes<Config>);
    static constexpr uint32 kQueryPiece = kPiecePanels * Pipeline::QueryTile::kPanel / 16;
    static constexpr uint32 kKeyPiece = kPiecePanels * Pipeline::KeyTile::kPanel / 16;

    const abi::PersistentArguments& args;
    const Pipeline& pipeline;
    const int32 lane = threadIdx.x % 32;
    const int32 warp_row = threadIdx.x / 32 % 4 * 16;

    uint32 blocks = 0;  // of keys done with

    ThreadRows rows_of_thread;
    LogitTransform<Config> logits;
    FragmentMask mask;
    LaggingSoftmax<LogitTransform<Config>::kFactorsInSoftmax> softmax{args};
    Accumulator<kKeys> s;
    OperandA<kKeys> p;
    float product_scale[kIsQuantized ? 2 : 1];  // of a row's products with stored keys

    __device__ void run() {
        rows_of_thread.set(args, warp_row);
#pragma unroll 1
        for (uint32 works = 0; const WorkTile* work = pipeline.take(works); ++works) {
            if constexpr (kIsQuantized) {  // under way while the queries are
                const abi::AttentionArguments& a = args.attention;
                product_scale[0] = product_scale[1] = stored_scale(a, a.k_scale, work->stored_head);
            }
            pipeline.queries(0).wait_full(typename Pipeline::QueryRing::Position(works));
            if constexpr (kConvertsQueries) convert_queries();
            softmax.start(product_scale);
            if constexpr (Config::alibi) set_rows(*work);
            const WideBlocks<Config> tile(*work);
#pragma unroll 1
            for (int32 i = 0; i < tile.count; ++i, ++blocks) {
                const typename Pipeline::KeyRing::Position at(blocks);
                const typename Pipeline::WeightRing::Position weights_at(blocks);
                if (tile.are_seen())
                    multiply_queries(at);
                else
                    let_pass(at);
                if (i == tile.count - 1) hand_over(pipeline.queries(0).empty(0));
                if (tile.are_seen())
                    weigh(*work, tile, tile.block(i), weights_at);
                else if (!Config::latent)
                    pipeline.weight_ring().wait_empty(weights_at);
                hand_over(pipeline.weight_ring().full(weights_at.stage));
            }
            const uint32 stage = Pipeline::WorkRing::Position(works).stage;
            close(stage);
            pipeline.rows(stage).arrive();  // all lanes have written
            pipeline.give_back(works);
            __syncwarp();
        }
    }

    __device__ void hand_over(Barrier full) const {
        __syncwarp();
        if (lane == 0) full.arrive();
    }

    // Queries in bf16 are made fp16 in their place, as keys are; nobody else reads them.
    __device__ void convert_queries() {
        constexpr int kSteps = (abi::padded_head_dim(Config::head_dim_vo) * Config::latent +
                                abi::padded_head_dim(Config::head_dim_qk)) /
                               16;
        const auto matrices = [&](int step) { return pipeline.q(0).matrices(lane, warp_row, step); };
        matrices_to_fp16<kSteps>(matrices, product_scale,
                                 [&](int step, const uint32(&x)[4]) { store_matrices(matrices(step), x); });
        fence_async_proxy();
        barrier_of(128, kBarrier);  // a product reads the rows of all four warps
    }

    __device__ void set_rows(const WorkTile& work) {
        const PackedRow rows[2] = {rows_of_thread.row(args, work, 0, 0),
                                   rows_of_thread.row(args, work, 0, 1)};
        mask.set(args.attention, work.sequence, rows);
        logits.set(args.attention, work.sequence, rows);
    }

    // The weights of block n.
    __device__ void weigh(const WorkTile& work, const WideBlocks<Config>& tile, int32 n,
                          const typename Pipeline::WeightRing::Position& at) {
        if constexpr (kIsQuantized && !LogitTransform<Config>::kFactorsInSoftmax) s.scale(product_scale);
        logits.apply(s, args.attention, n * kKeys);
        if (tile.own.coverage(n) == Coverage::partial) {
            if constexpr (!Config::alibi) set_rows(work);  // not kept: registers are short
            mask.apply(s, n * kKeys);
        }
        float reference[2];
        const bool rescales = softmax.take(s, reference);
        softmax.template weigh<0, kKeys>(s, reference);
        p.template pack<Element>(s);
        if constexpr (Config::latent)
            barrier_of(128, kBarrier);  // all four warps are done with the columns of the position
        else
            pipeline.weight_ring().wait_empty(at);
        const typename Pipeline::WeightTile weights = pipeline.weights(at.stage);
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step)
            store_matrices(weights.matrices(lane, warp_row, step), p[step]);
        abi::RowRescales& told = pipeline.block_rows(at.stage);
        if (lane == 0) told.rescales[warp_row / 16] = rescales;
        if (rescales) tell_rescales(told);
        fence_async_proxy();
    }

    // Lane 0 writes it all, because it hands the weights over. There is seldom something to tell.
    __device__ void tell_rescales(abi::RowRescales& told) const {
#pragma unroll 1
        for (int32 row = 0; row < 8; ++row) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float of_row = __shfl_sync(0xffffffffu, softmax.rescale[i], row * 4);
                if (lane == 0) told.rescale[warp_row + 8 * i + row] = of_row;
            }
        }
    }

    // S = Q K^T, by pieces of the columns as they come.
    __device__ void multiply_queries(const typename Pipeline::KeyRing::Position& at) {
        const uint32 q = row_descriptor(pipeline.q(0)), k = row_descriptor(pipeline.k(at.stage));
        if constexpr (Config::latent) {
            multiply_latents(at, q, k);
        } else {
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece) {
                multiply_piece(pipeline.keys(piece).full(at.stage), at.phase, piece, q,
                               k + piece * kKeyPiece);
                wgmma_commit();
            }
            give_back_keys<0>(at.stage);
        }
        pin(s);
    }

    // By turns of the two halves, as they are given back.
    __device__ void multiply_latents(const typename Pipeline::KeyRing::Position& at, uint32 q, uint32 k) {
        const uint32 v = row_descriptor(pipeline.v(at.stage)),
                     position = row_descriptor(pipeline.position(at.stage));
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
            multiply_piece(pipeline.keys(piece).full(at.stage), at.phase, piece, q, k + piece * kKeyPiece);
            multiply_piece(pipeline.values(piece).full(at.stage), at.phase, kPieces + piece, q,
                           v + piece * kKeyPiece);
        }
        if constexpr (Config::head_dim_qk > 0) {
            pipeline.position_full(at.stage).wait(at.phase);
            wgmma_fence();
            Config::multiply_positions(s.values, q + 2 * kPieces * kQueryPiece, position);
        }
        wgmma_commit();
        wgmma_wait<0>();
    }

    // `piece`: of the queries, which the columns are of.
    __device__ void multiply_piece(Barrier full, Phase phase, int piece, uint32 q, uint32 columns) {
        full.wait(phase);
        wgmma_fence();
        if (piece == 0)
            Config::multiply_first_queries(s.values, q, columns);
        else
            Config::multiply_more_queries(s.values, q + piece * kQueryPiece, columns);
    }

    // Each piece as soon as its product is done.
    template <int Piece>
    __device__ void give_back_keys(uint32 stage) const {
        if constexpr (Piece < kPieces) {
            wgmma_wait<kPieces - 1 - Piece>();
            hand_over(pipeline.keys(Piece).empty(stage));
            give_back_keys<Piece + 1>(stage);
        }
    }

    __device__ void let_pass(const typename Pipeline::KeyRing::Position& at) const {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
            pipeline.keys(piece).wait_full(at);
            if constexpr (Config::latent) pipeline.values(piece).wait_full(at);
        }
        if constexpr (Config::latent && Config::head_dim_qk > 0)
            pipeline.position_full(at.stage).wait(at.phase);
        if constexpr (!Config::latent) {
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece) hand_over(pipeline.keys(piece).empty(at.stage));
        }
    }

    __device__ void close(uint32 stage) const {
        abi::RowStates& told = pipeline.tile_rows(stage);
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
struct WgmmaWideValues {
    using Pipeline = PersistentPipeline<Config>;
    using KeyRing = typename Pipeline::KeyRing;
    using WeightRing = typename Pipeline::WeightRing;
    static constexpr int kColumns = abi::piece_columns(Config::shape, true);
    // Of half of the columns: of V, or of latents those that come as K, or as V.
    static constexpr int kPieces = abi::column_pieces(Config::shape, true) / (Config::latent ? 1 : 2);
    static constexpr uint32 kPieceBytes =
        abi::panels_of(kColumns, kOperandBytes<Config>) * Pipeline::KeyTile::kPanel;
    // TMA needs rows at multiples of 16 bytes, and so does the planner of this family.
    static constexpr int kAlignment = 16;
    static constexpr int kThreads = 256;
    static constexpr int32 kBarrier = 1;  // a named one, of both warpgroups

    const abi::PersistentArguments& args;
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
            const WideBlocks<Config> tile(*work);
#pragma unroll 1
            for (int32 i = 0; i < tile.count; ++i, ++blocks)
                go_through(typename KeyRing::Position(blocks), typename WeightRing::Position(blocks),
                           tile.are_seen());
            const typename Pipeline::WorkRing::Position at(works);
            pipeline.rows(at.stage).wait(at.phase);
            close(*work, pipeline.tile_rows(at.stage));
            pipeline.give_back(works);
            __syncwarp();
        }
    }

    __device__ KeyRing ring(int piece) const {
        if constexpr (Config::latent)
            return second ? pipeline.values(piece) : pipeline.keys(piece);
        else
            return pipeline.values(second * kPieces + piece);
    }
    __device__ typename Pipeline::KeyTile first_piece(uint32 stage) const {
        if constexpr (Config::latent)
            return second ? pipeline.v(stage) : pipeline.k(stage);
        else
            return {pipeline.v(stage).start + second * (kPieces * kPieceBytes)};
    }

    // O += P V of a block, if its keys are seen. All that does not need the weights comes before them: with
    // the tensor core at work shared memory is slow to answer.
    __device__ void go_through(const typename KeyRing::Position& at,
                               const typename WeightRing::Position& weights_at, bool are_seen) {
        const uint32 weights = row_descriptor(pipeline.weights(weights_at.stage));
        const uint32 columns = column_descriptor(first_piece(at.stage));
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) ring(piece).wait_full(at);
        pipeline.weight_ring().wait_full(weights_at);
        if (are_seen) {
            rescale(pipeline.block_rows(weights_at.stage));
            wgmma_fence();
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece) {
                Config::multiply_values(o[piece].values, weights, columns + piece * (kPieceBytes / 16));
                wgmma_commit();
            }
        }
        give_back<0>(at.stage);
        if constexpr (!Config::latent) {
            pipeline.weight_ring().empty(weights_at.stage).arrive();  // all lanes have read its rows
        }
    }

    __device__ void rescale(const abi::RowRescales& told) {
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

    __device__ void close(const WorkTile& work, const abi::RowStates& told) {
        const Epilogue<Config, kAlignment> epilogue{args.attention, work.sequence};
        const GroupPartTile tile = work.rows(args, 0, 1);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32 in_tile = warp_row + fragment_row(lane, i);
            const PackedRow row = rows_of_thread.row(args, work, 0, i);
            const auto place = place_of(epilogue, work, tile, row);
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece) {
                o[piece].scale_row(i, told.correction[in_tile]);
                epilogue.store_columns(row, place, (second * kPieces + piece) * kColumns, o[piece], i,
                                       told.maximum[in_tile], told.sum[in_tile]);
            }
        }
        if constexpr (Config::shares) {
            if (!work.part.is_whole()) join(work, tile);
        }
    }

    // Where a row is among partial results; -1 where it is whole.
    __device__ auto place_of(const Epilogue<Config, kAlignment>& epilogue, const WorkTile& work,
                             const GroupPartTile& tile, const PackedRow& row) const {
        if constexpr (Config::shares)
            return work.part.is_whole() ? -1 : work.part.place + tile.index(row);
        else
            return args.attention.splits > 1 ? epilogue.partial(row, work.split) : int64(-1);
    }

    __device__ void join(const WorkTile& work, const GroupPartTile& tile) const {
        const TileParts parts = work.parts;
        const auto joiners =
            joiners_of<kThreads>(pipeline.share().slices[0], [] { barrier_of(kThreads, kBarrier); });
        join_rows<Config, kAlignment>(tile, parts, work.part, parts.first, 0, joiners);
    }
};

}  // namespace attnsmith
