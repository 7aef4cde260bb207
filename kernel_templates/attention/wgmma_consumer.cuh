// The roles of a wgmma CTA that multiply: a warpgroup each.
#pragma once

#include "attention/wgmma_work.cuh"
#include "common/copy.cuh"
#include "common/element.cuh"
#include "common/wgmma.cuh"

namespace attnsmith {

template <class Config>
struct WgmmaConsumer {
    using Element = typename Config::Element;
    static constexpr abi::WgmmaShared kLayout = abi::wgmma_shared(Config::shape);
    static constexpr int kKeys = Config::tile_kv;
    static constexpr int kSteps = abi::padded_head_dim(Config::head_dim_qk) / 16;
    static constexpr bool kQueriesInRegisters = Config::queries_in_registers;
    // Eights of columns that are made weights before the wait for O: some, so that O has time, and no more,
    // so that weights can be packed between exponentials. Of three warpgroups one multiplies anyway.
    static constexpr int kEarly = Config::consumers == 3 ? kKeys / 8 : kKeys / 8 * 3 / 8;
    static constexpr float kNothing = -3.402823466e38f;  // below any logit

    const abi::WgmmaArguments& all;
    const WgmmaShared<Config>& shared;
    const int32 warpgroup;  // of the consumers
    const int32 lane = threadIdx.x % 32;
    const int32 warp_row = threadIdx.x / 32 % 4 * 16;  // of the warpgroup's

    uint32 blocks = 0;  // of keys done with
    uint32 places;      // of this thread's two rows in the warpgroup: tokens and heads, 8 bits each

    FragmentRows<Config> rows;
    float m[2];       // the logit that a row's exponents are relative to
    float slack;      // by how much a logit may exceed it, in this warp
    float l[2];       // sum of the weights, of this thread's columns only, until close()
    float factor[2];  // of O, when m has moved
    float s[kKeys / 8][4];
    float o[Config::head_dim_vo / 8][4];
    uint32 p[kKeys / 16][4];
    uint32 q[kQueriesInRegisters ? kSteps : 1][4];

    __device__ void run() {
        places = 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32 row = warp_row + lane / 4 + 8 * i, group = all.attention.group;
            places |= (row / group | row % group << 8) << (16 * i);
        }
#pragma unroll 1
        for (uint32 works = 0; const Work* work = shared.take(works); ++works) {
            mbarrier_wait(shared.q_full(warpgroup), works & 1);
            start(*work);
            go_through(*work);
            close(*work);
            __syncwarp();
            if (lane == 0) shared.give_back(works);
        }
    }

    __device__ PackedRow row(const Work& work, int i) const {
        const int32 in_warpgroup = places >> (16 * i) & 0xff, head = places >> (16 * i + 8) & 0xff;
        const int32 token = work.first_token + warpgroup * all.warpgroup_tokens + in_warpgroup;
        return {token, work.kv_head * all.attention.group + head,
                in_warpgroup < all.warpgroup_tokens && token < work.sequence.q_len};
    }

    __device__ void set_rows(const Work& work) {
        const PackedRow both[2] = {row(work, 0), row(work, 1)};
        rows.set(all.attention, work.sequence, both);
    }

    __device__ void start(const Work& work) {
#pragma unroll
        for (int j = 0; j < Config::head_dim_vo / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) o[j][i] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            m[i] = kNothing;
            l[i] = 0.0f;
        }
        slack = all.slack;
        if constexpr (Config::alibi) set_rows(work);
        if constexpr (kQueriesInRegisters) {
            const int32 row = warp_row + lane % 16;
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                const int32 chunk = step * 2 + lane / 16;
                load_matrices(q[step], shared.q(warpgroup) + chunk / 8 * kLayout.q_panel +
                                           row * (abi::kWgmmaPanel * 2) + (chunk ^ row) % 8 * 16);
            }
        }
    }

    // The tile's blocks. Those that only other warpgroups' rows see are let pass.
    __device__ void go_through(const Work& work) {
        const OwnBlocks own = work.own[warpgroup];
        pass(work.blocks.end - own.end);
        if (own.first < own.end) {
            attend(work, own);
        } else {
            __syncwarp();
            free(shared.q_empty(warpgroup));
        }
        pass(own.first - work.blocks.first);
    }

    __device__ void pass(int32 count) {
#pragma unroll 1
        for (; count > 0; --count) {
            wait_k(0);
            wait_v();
            __syncwarp();
            free(shared.k_empty(slot(0)));
            free(shared.v_empty(slot(0)));
            ++blocks;
        }
    }

    // The warpgroup's own blocks, of which there is one at least.
    __device__ void attend(const Work& work, const OwnBlocks& own) {
        wait_k(0);
        multiply_queries(0);
        if constexpr (kQueriesInRegisters) {  // a product has them, so that they are there
            __syncwarp();
            free(shared.q_empty(warpgroup));
        }
        wgmma_wait<0>();
        pin(s);
        pin(o);
        for (int32 n = own.end - 1;; --n) {
            wgmma_wait<1>();  // S; the product with V goes on
            pin(s);
            free(shared.k_empty(slot(0)));
            const bool more = n > own.first;
            if (!kQueriesInRegisters && !more) free(shared.q_empty(warpgroup));
            float reference[2];
            const bool moved = take_logits(work, n, n < own.plain_first || n >= own.plain_end, reference);
            weigh<0, kEarly>(reference);
            // Never: but ptxas, which does not know, cannot move weights over a branch that depends on their
            // sum, to behind the wait for O.
            if (l[0] + l[1] < 0.0f) asm volatile("nanosleep.u32 20;" ::: "memory");
            wgmma_wait<0>();
            pin(o);
            if (n < own.end - 1) free(shared.v_empty(slot(-1)));
            weigh<kEarly, kKeys / 8>(reference);
            if (moved && n < own.end - 1) scale_output();
            pack();
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
        free(shared.v_empty(slot(0)));
        ++blocks;
    }

    // Of the block whose weights come next, or of one `ahead` of it.
    __device__ uint32 slot(int32 ahead) const { return RingPlace<Config::stages>(blocks + ahead).slot; }
    __device__ void wait_k(int32 ahead) const {
        const RingPlace<Config::stages> place(blocks + ahead);
        mbarrier_wait(shared.k_full(place.slot), place.parity);
    }
    __device__ void wait_v() const {
        const RingPlace<Config::stages> place(blocks);
        mbarrier_wait(shared.v_full(place.slot), place.parity);
    }
    __device__ void free(uint32 empty) const {
        if (lane == 0) mbarrier_arrive(empty);
    }

    // S = Q K^T, asynchronously.
    __device__ void multiply_queries(int32 ahead) {
        const uint32 k = descriptor_start(shared.k(slot(ahead)));
        const uint32 q_tile = kQueriesInRegisters ? 0 : descriptor_start(shared.q(warpgroup));
        wgmma_fence();
        if constexpr (kQueriesInRegisters) {
            Config::multiply_queries(s, q, k);
        } else {
            Config::multiply_queries(s, q_tile, k);
        }
        wgmma_commit();
    }

    // O += P V, asynchronously.
    __device__ void multiply_values() {
        const uint32 v = descriptor_start(shared.v(slot(0)), kLayout.kv_panel);
        wgmma_fence();
        Config::multiply_values(o, p, v);
        wgmma_commit();
    }

    // A weight is exp2(c (s - m)). It is computed as exp2(c s - reference), where that is an fma, with the
    // reference c m: rounding that is nothing while c m is small. Of a row whose c m is large m is subtracted
    // from the logits first. All by selection: a branch costs more than what it spares.
    __device__ bool is_large(int i) const {
        constexpr float kLarge = 8192.0f;  // rounded by 2^-11: the largest weight is 1 in 16 bits
        return (m[i] > kNothing) & (fabsf(m[i] * all.attention.scale_log2) > kLarge);
    }
    __device__ float reference(int i) const {
        const float reference = fmaxf(m[i] * all.attention.scale_log2, kNothing);
        return is_large(i) ? 0.0f : reference;
    }
    // c m, less what the weights' exponents are relative to.
    __device__ float excess(int i) const {
        const float excess = fmaf(m[i], all.attention.scale_log2, -reference(i));
        return is_large(i) | (m[i] == kNothing) ? 0.0f : excess;
    }

    // Masks the logits and looks for the largest. Whether O has to be multiplied by `factor`: m follows the
    // maximum only when a logit exceeds it by `slack`, so that in most blocks nobody waits for a maximum over
    // lanes.
    __device__ bool take_logits(const Work& work, int32 n, bool masked, float (&reference)[2]) {
        rows.adjust(s, all.attention, n * kKeys);
        if (masked) {
            if constexpr (!Config::alibi) set_rows(work);  // not kept
            rows.mask(s, n * kKeys);
        }
        float top[2][2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            top[i][0] = fmaxf(s[0][2 * i], s[0][2 * i + 1]);
            top[i][1] = fmaxf(s[1][2 * i], s[1][2 * i + 1]);
#pragma unroll
            for (int j = 2; j < kKeys / 8; ++j)
                top[i][j % 2] = fmaxf(top[i][j % 2], fmaxf(s[j][2 * i], s[j][2 * i + 1]));
            top[i][0] = fmaxf(top[i][0], top[i][1]);
            reference[i] = fmaxf(m[i] * all.attention.scale_log2, kNothing);
        }
        const bool moves = __any_sync(0xffffffffu, top[0][0] - m[0] > slack || top[1][0] - m[1] > slack);
        if (moves) move(top[0][0], top[1][0], reference);
        return moves;
    }

    // m to the maxima of rows where these exceed it by much. Of large rows every block comes here: m is
    // subtracted from their logits.
    __device__ void move(float top0, float top1, float (&now)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float before = m[i], excess_before = excess(i), next = row_max(i == 0 ? top0 : top1);
            const bool moves = next - before > all.slack;
            m[i] = moves ? next : before;
            const float change =
                exp2_approx(fmaf(before - next, all.attention.scale_log2, excess(i) - excess_before));
            factor[i] = moves ? change : 1.0f;
            l[i] *= factor[i];
            now[i] = reference(i);
        }
        const bool any_large = __any_sync(0xffffffffu, is_large(0) | is_large(1));
        slack = any_large ? -infinity() : all.slack;
        if (!any_large) return;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float base = is_large(i) ? m[i] : 0.0f;
#pragma unroll
            for (int j = 0; j < kKeys / 8; ++j) {
                s[j][2 * i] -= base;
                s[j][2 * i + 1] -= base;
            }
        }
    }

    // Logits to weights, of columns 8 First ... 8 End - 1.
    template <int First, int End>
    __device__ void weigh(const float (&reference)[2]) {
#pragma unroll
        for (int j = First; j < End; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s[j][i] = exp2_approx(fmaf(s[j][i], all.attention.scale_log2, -reference[i / 2]));
                l[i / 2] += s[j][i];
            }
        }
    }

    __device__ void scale_output() {
#pragma unroll
        for (int j = 0; j < Config::head_dim_vo / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) o[j][i] *= factor[i / 2];
        }
    }

    // P in the layout of the A operand.
    __device__ void pack() {
#pragma unroll
        for (int step = 0; step < kKeys / 16; ++step) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float(&pair)[4] = s[2 * step + i / 2];
                p[step][i] = Element::pack(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
            }
        }
    }

    __device__ void close(const Work& work) {
        const RowTile tile = work.rows(all, warpgroup, 1);
        const float c = all.attention.scale_log2;
        PackedRow row[2];
        float top[2], exact[2], sum[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            row[i] = this->row(work, i);
            top[i] = m[i] == kNothing ? -infinity() : m[i];
            exact[i] = exp2_approx(-excess(i));  // others take weights relative to m itself
            sum[i] = row_sum(l[i]) * exact[i];
        }
        const bool split = all.attention.splits > 1;
        RowResult result[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            result[i] = finish_row(top[i], sum[i], c, tile.sink(row[i]));
            factor[i] = split ? exact[i] : result[i].factor * exact[i];
        }
        scale_output();  // in one place for both ways to store it
        if (split) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (!row[i].valid) continue;
                const int64 at = tile.partial(row[i], work.split);
                tile.store_partial_o<Config>(at, o, i, 1.0f);
                if (lane % 4 == 0) tile.store_partial_ml(at, top[i], sum[i]);
            }
            return;
        }
        if (all.attention.lse && lane % 4 == 0) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                if (row[i].valid) tile.store_lse(row[i], result[i].lse);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) store_row(row[i].valid ? tile.output(row[i]) : nullptr, i);
    }

    // Four lanes hold a row in pieces of two columns: they trade them for whole chunks of eight, all at once,
    // so that one exchange does not wait for the one before.
    __device__ void store_row(uint16* target, int i) const {
        constexpr int kChunks = Config::head_dim_vo / 8;
        constexpr int kRounds = (kChunks + 3) / 4;
        uint32 chunk[kRounds][4];
#pragma unroll
        for (int j = 0; j < kRounds * 4; ++j) {
            const int from = j < kChunks ? j : 0;
            chunk[j / 4][j % 4] = Element::pack(o[from][2 * i], o[from][2 * i + 1]);
        }
        trade<1>(chunk);
        trade<2>(chunk);
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
            const int32 mine = round * 4 + lane % 4;
            if (target != nullptr && mine < kChunks) store_16_bytes<16>(target + mine * 8, chunk[round]);
        }
    }

    // With the lane that differs in `Bit`, x[j] for x[j ^ Bit] where bits differ: both trades together make
    // x[j] of lane i the x[i] of lane j. In one statement: the compiler takes long over so many selections.
    template <int Bit, int Rounds>
    __device__ void trade(uint32 (&x)[Rounds][4]) const {
#pragma unroll
        for (int i = 0; i < Rounds * 4; ++i) {
            const int round = i / 4, low = i % 4, high = low | Bit;
            if (low & Bit) continue;
            asm volatile(
                "{.reg .pred upper; .reg .b32 traded; setp.ne.b32 upper, %2, 0; "
                "selp.b32 traded, %0, %1, upper; shfl.sync.bfly.b32 traded, traded, %3, 31, 0xffffffff; "
                "selp.b32 %0, traded, %0, upper; selp.b32 %1, %1, traded, upper;}"
                : "+r"(x[round][low]), "+r"(x[round][high])
                : "r"(lane & Bit), "n"(Bit));
        }
    }
};

}  // namespace attnsmith
