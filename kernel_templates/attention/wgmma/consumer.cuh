// The roles of a wgmma CTA that multiply: a warpgroup each.
#pragma once

#include "attention/epilogue.cuh"
#include "attention/join_pieces.cuh"
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

template <class Config>
struct WgmmaConsumer {
    using Pipeline = PersistentPipeline<Config>;
    using KeyRing = typename Pipeline::KeyRing;
    static constexpr int kKeys = Config::tile_kv;
    static constexpr int kQk = abi::padded_head_dim(Config::head_dim_qk);
    static constexpr bool kQueriesInRegisters = Config::queries_in_registers;
    static constexpr bool kIsQuantized = StageOf<Config>::kIsQuantized;
    using Element = OperandElement<Config>;
    static constexpr bool kConvertsQueries = !is_same<typename Config::Query, Element>;
    // TMA needs rows at multiples of 16 bytes, and so does the planner of this family.
    static constexpr int kAlignment = 16;
    static_assert(!Config::absolute_cuts || abi::kLeastCut % Config::tile_kv == 0,
                  "rows are cut behind whole tiles");
    // Columns that are made weights before the wait for O: some, so that O has time, and no more,
    // so that weights can be packed between exponentials. Of three warpgroups one multiplies anyway.
    static constexpr int kEarly = Config::consumers == 3 ? kKeys : kKeys / 8 * 3 / 8 * 8;

    const abi::PersistentArguments& args;
    const Pipeline& pipeline;
    const int32 warpgroup;  // of the consumers
    const int32 lane = threadIdx.x % 32;
    const int32 warp_row = threadIdx.x / 32 % 4 * 16;  // of the warpgroup's

    uint32 blocks = 0;  // of keys done with

    ThreadRows rows_of_thread;
    LogitTransform<Config> logits;
    FragmentMask mask;
    LaggingSoftmax<LogitTransform<Config>::kFactorsInSoftmax> softmax{args};
    Accumulator<kKeys> s;
    Accumulator<Config::head_dim_vo> o;
    OperandA<kKeys> p;
    OperandA<kQueriesInRegisters ? kQk : 16> q;
    float product_scale[kIsQuantized ? 2 : 1];  // of a row's products with stored keys

    // With absolute cuts. Two CTAs an SM have registers to spare and no shared memory; three warpgroups of a
    // CTA have no register.
    FoldedRows<Accumulator<Config::head_dim_vo>, Config::consumers * 4, Config::shares> folded{
        pipeline.state()};
    bool is_cut = false;  // before the block at hand, of this tile
    // What rows that are cut have found since their last cut.
    struct Found {
        float maximum[2], correction[2], sum[2];
        bool is_cut[2];
    };

    __device__ void run() {
        rows_of_thread.set(args, warp_row);
#pragma unroll 1
        for (uint32 works = 0; const WorkTile* work = pipeline.take(works); ++works) {
            const auto queries = pipeline.queries(warpgroup);
            if constexpr (kIsQuantized) {  // under way while the queries are
                const abi::AttentionArguments& a = args.attention;
                product_scale[0] = product_scale[1] = stored_scale(a, a.k_scale, work->stored_head);
            }
            queries.wait_full(typename Pipeline::QueryRing::Position(works));
            start(*work);
            go_through(*work);
            close(*work);
            pipeline.give_back(works);
            __syncwarp();
        }
    }

    __device__ PackedRow row(const WorkTile& work, int i) const {
        return rows_of_thread.row(args, work, warpgroup, i);
    }

    __device__ void set_rows(const WorkTile& work) {
        const PackedRow rows[2] = {row(work, 0), row(work, 1)};
        mask.set(args.attention, work.sequence, rows);
        logits.set(args.attention, work.sequence, rows);
    }

    // Four 8x8 matrices of the warp's rows of Q: 16 columns.
    __device__ SharedAddress query_matrices(int step) const {
        return pipeline.q(warpgroup).matrices(lane, warp_row, step);
    }

    // Queries in bf16 beside keys that were widened to fp16: these are made fp16, too, in registers or in
    // their place.
    __device__ void convert_queries() {
        const auto matrices = [&](int step) { return query_matrices(step); };
        matrices_to_fp16<kQk / 16>(matrices, product_scale, [&](int step, const uint32(&x)[4]) {
            if constexpr (kQueriesInRegisters) {
#pragma unroll
                for (int j = 0; j < 4; ++j) q[step][j] = x[j];
            } else {
                store_matrices(query_matrices(step), x);
            }
        });
        if constexpr (!kQueriesInRegisters) {
            fence_async_proxy();
            barrier_of(128, 1 + warpgroup);  // a product reads the rows of all four warps
        }
    }

    __device__ void start(const WorkTile& work) {
        if constexpr (kConvertsQueries) convert_queries();
        o.clear();
        softmax.start(product_scale);
        if constexpr (Config::absolute_cuts) {
            folded.begin();
            is_cut = false;
        }
        if constexpr (Config::alibi) set_rows(work);
        if constexpr (kQueriesInRegisters && !kConvertsQueries) {
#pragma unroll
            for (int step = 0; step < kQk / 16; ++step) load_matrices(q[step], query_matrices(step));
        }
    }

    // The tile's blocks. Those that only other warpgroups' rows see are let pass.
    __device__ void go_through(const WorkTile& work) {
        const WarpgroupBlocks own = work.warpgroup[warpgroup];
        let_pass(blocks_before<Config>(work.blocks, own.attended));
        const bool sees_keys = own.has_any();
        if (sees_keys) attend(work, own);
        // Not in an else: with one warpgroup ptxas 13.0 makes a branch of lane 0's own of it, behind which
        // the warp stays divided, and the next tile's queries are loaded by a part of it.
        __syncwarp();
        if (!sees_keys) release_queries();
        let_pass(blocks_behind<Config>(work.blocks, own.attended));
    }

    __device__ void let_pass(int32 count) {
#pragma unroll 1
        for (; count > 0; --count) {
            wait_k(0);
            wait_v();
            __syncwarp();
            release_k();
            release_v(0);
            ++blocks;
        }
    }

    // The mainloop: the warpgroup's own blocks, of which there is one at least.
    __device__ void attend(const WorkTile& work, const WarpgroupBlocks& own) {
        wait_k(0);
        multiply_queries(0);
        if constexpr (kQueriesInRegisters) {  // a product has them, so that they are there
            __syncwarp();
            release_queries();
        }
        wgmma_wait<0>();
        pin(s);
        pin(o);
        for (AttendedBlocks<Config> keys(own);; keys.advance()) {
            const int32 n = keys.block;
            wgmma_wait<1>();  // S; the product with V goes on
            pin(s);
            release_k();
            const bool more = !keys.is_last();
            const bool cuts = Config::absolute_cuts && !keys.is_first() && cuts_before(work, n * kKeys);
            Found found;
            if (cuts) found = take_found(work, n * kKeys);
            if (!kQueriesInRegisters && !more) release_queries();
            float reference[2];
            const bool rescale = take_logits(work, n, keys.coverage(), reference);
            softmax.template weigh<0, kEarly>(s, reference);
            complete_before(softmax.sum[0] + softmax.sum[1]);
            wgmma_wait<0>();
            pin(o);
            if (!keys.is_first()) release_v(-1);
            if (cuts) cut(work, n * kKeys, found);
            softmax.template weigh<kEarly, kKeys>(s, reference);
            if (rescale && !keys.is_first()) o.scale(softmax.rescale);
            p.template pack<Element>(s);
            if (!more) break;
            wait_k(1);
            multiply_queries(1);
            wait_v();
            multiply_values();
            ++blocks;
        }
        wait_v();
        multiply_values();
        wgmma_wait<0>();
        pin(o);
        release_v(0);
        ++blocks;
    }

    // Whether a row may be cut before `key`.
    __device__ bool cuts_before(const WorkTile& work, int32 key) const {
        return key % abi::kLeastCut == 0 && !(is_apart(work) && key % work.places.length != 0);
    }

    // From the softmax, which starts anew in rows that are cut before `key`.
    __device__ Found take_found(const WorkTile& work, int32 key) {
        Found found;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            found.is_cut[i] = is_cut_before(key, args.attention, work.sequence, row(work, i).token);
            found.maximum[i] = softmax.maximum(i);
            found.correction[i] = softmax.correction(i);
            found.sum[i] = row_sum(softmax.sum[i]) * found.correction[i];
            if (found.is_cut[i]) softmax.begin(i);
        }
        return found;
    }

    // O of the blocks before `key` is there: what rows that are cut have found goes to their states, or to
    // their piece's place.
    __device__ void cut(const WorkTile& work, int32 key, const Found& found) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
            if (found.is_cut[i]) o.scale_row(i, found.correction[i]);
        if (is_apart(work)) {
            const PackedRow rows[2] = {row(work, 0), row(work, 1)};
            const GroupPartTile tile = work.rows(args, 0, Config::consumers);
            const auto place = [&](const PackedRow& row) {
                return work.places.before(key) + tile.index(row);
            };
            const Epilogue<Config, kAlignment> epilogue{args.attention, work.sequence};
            epilogue.store_partial_rows(rows, place, o, found.maximum, found.sum);
        } else {
#pragma unroll
            for (int i = 0; i < 2; ++i)
                folded.fold(i, found.is_cut[i], o, found.maximum[i], found.sum[i], args.attention.scale_log2);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i)
            if (found.is_cut[i]) o.clear_row(i);
        is_cut = true;
    }

    // Whether pieces have places of their own.
    __device__ bool is_apart(const WorkTile& work) const {
        if constexpr (Config::shares)
            return work.places.are_apart();
        else
            return false;
    }

    // Where the block whose weights come next is in its ring, or one `ahead` of it.
    __device__ typename KeyRing::Position position(int32 ahead) const {
        return typename KeyRing::Position(blocks + ahead);
    }
    __device__ void wait_k(int32 ahead) const { pipeline.keys().wait_full(position(ahead)); }
    __device__ void wait_v() const { pipeline.values().wait_full(position(0)); }
    __device__ void release(Barrier empty) const {
        if (lane == 0) empty.arrive();
    }
    __device__ void release_k() const { release(pipeline.keys().empty(position(0).stage)); }
    __device__ void release_v(int32 ahead) const { release(pipeline.values().empty(position(ahead).stage)); }
    __device__ void release_queries() const { release(pipeline.queries(warpgroup).empty(0)); }

    // S = Q K^T, asynchronously.
    __device__ void multiply_queries(int32 ahead) {
        const uint32 k = row_descriptor(pipeline.k(position(ahead).stage));
        const uint32 q_tile = kQueriesInRegisters ? 0 : row_descriptor(pipeline.q(warpgroup));
        wgmma_fence();
        if constexpr (kQueriesInRegisters) {
            Config::multiply_queries(s.values, q.values, k);
        } else {
            Config::multiply_queries(s.values, q_tile, k);
        }
        wgmma_commit();
    }

    // O += P V, asynchronously.
    __device__ void multiply_values() {
        const uint32 v = column_descriptor(pipeline.v(position(0).stage));
        wgmma_fence();
        Config::multiply_values(o.values, p.values, v);
        wgmma_commit();
    }

    // Masks the logits and looks for the largest. Whether O has to be rescaled.
    __device__ bool take_logits(const WorkTile& work, int32 n, Coverage coverage, float (&reference)[2]) {
        if constexpr (kIsQuantized && !LogitTransform<Config>::kFactorsInSoftmax) s.scale(product_scale);
        logits.apply(s, args.attention, n * kKeys);
        if (coverage == Coverage::partial) {
            if constexpr (!Config::alibi) set_rows(work);  // not kept: registers are short
            mask.apply(s, n * kKeys);
        }
        return softmax.take(s, reference);
    }

    __device__ void close(const WorkTile& work) {
        PackedRow rows[2];
        float maximum[2], correction[2], sum[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            rows[i] = row(work, i);
            maximum[i] = softmax.maximum(i);
            correction[i] = softmax.correction(i);
            sum[i] = row_sum(softmax.sum[i]) * correction[i];
        }
        int32 first_place = work.part.place;
        if constexpr (Config::absolute_cuts) {
            o.scale(correction);
            correction[0] = correction[1] = 1.0f;
            if (is_cut && !is_apart(work)) {
                folded.close(o, maximum, sum, args.attention.scale_log2);
            }
            if constexpr (Config::shares) first_place = work.places.before(work.blocks.end * kKeys);
        }
        const Epilogue<Config, kAlignment> epilogue{args.attention, work.sequence};
        if constexpr (Config::shares) {
            const GroupPartTile tile = work.rows(args, 0, Config::consumers);
            const auto place = [&](const PackedRow& row) { return first_place + tile.index(row); };
            epilogue.store_exchanged(rows, !work.part.is_whole(), place, o, maximum, sum, correction);
            if (!work.part.is_whole()) join(work);
        } else {
            const auto place = [&](const PackedRow& row) { return epilogue.partial(row, work.split); };
            epilogue.store_exchanged(rows, args.attention.splits > 1, place, o, maximum, sum, correction);
        }
    }

    // Each warpgroup joins its own rows: others may be at another tile.
    __device__ void join(const WorkTile& work) const {
        const GroupPartTile rows = work.rows(args, warpgroup, 1);
        if (rows.first >= work.sequence.rows(args.attention)) return;
        const TileParts parts = work.parts;
        const int32 of_cta = parts.first * Config::consumers + warpgroup;
        const auto joiners =
            joiners_of<128>(pipeline.share().slices[warpgroup], [this] { barrier_of(128, 1 + warpgroup); });
        if constexpr (Config::absolute_cuts) {
            static_assert(Config::consumers == 1, "a list of pieces is one tile's");
            join_pieces<Config, kAlignment>(rows, parts, work.part, of_cta, pipeline.share().share,
                                            pipeline.state(), joiners);
            joiners.wait();  // nobody needs the list: the next tile's states go there
        } else {
            join_rows<Config, kAlignment>(rows, parts, work.part, of_cta,
                                          rows.first - work.first_token * args.attention.group, joiners);
        }
    }
};

}  // namespace attnsmith
