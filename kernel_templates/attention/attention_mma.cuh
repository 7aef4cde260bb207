// Attention on mma.sync tensor cores, sm_80 and up: prefill and decode, contiguous or paged KV.
//
//   One block: a tile of packed query rows (token x query head of the group) of one sequence and KV head,
//   against the keys that these rows may see, within one chunk of a KV split.
//
//            global ──cp.async──> K ring, V ring (Config::stages each)      all threads load and compute
//     tile n:   K(n) ready │ S = Q K(n)^T   mask   online softmax │ V(n) ready │ O += P V(n)
//               start V(n-1+stages)                               │ start K(n+stages)
//
//   Two barriers a tile: the one before S also says that V(n-1) is free, the one before P V that K(n) is.
//   Warps: warps_q x warps_kv. Each warp has 16 rows and every warps_kv-th slice of a tile's keys; with
//   warps_kv > 1 (few rows: decode) each warp keeps a softmax of its own, and these are joined in shared
//   memory at the end. Key tiles lie at absolute multiples of tile_kv and are taken in ascending order.
#pragma once

#include "attention/key_value_tiles.cuh"
#include "attention/rows.cuh"
#include "common/element.cuh"

namespace attnsmith {

template <class Config>
struct AttentionMma {
    using Element = typename Config::Element;
    static constexpr int kQk = abi::padded_head_dim(Config::head_dim_qk);
    static constexpr int kVo = abi::padded_head_dim(Config::head_dim_vo);
    static constexpr int kThreads = Config::warps_q * Config::warps_kv * 32;
    static constexpr int kWarpKeys = Config::tile_kv / Config::warps_kv;
    static constexpr bool kQueriesInRegisters = Config::queries_in_registers;
    static constexpr int kPending = 2 * Config::stages - 2;
    static constexpr abi::AttentionShared kLayout = abi::attention_shared(Config::shape);
    static_assert(Config::tile_q == 16 * Config::warps_q,
                  "a warp has 16 query rows: tile_q must be 16 * warps_q");
    static_assert(kWarpKeys % 16 == 0,
                  "a warp takes keys by 16: tile_kv must be a multiple of 16 * warps_kv");
    static_assert(Config::warps_kv == 1 || Config::warps_q == 1,
                  "warps split the queries or the keys, not both");

    using QueryPanel = Panel<Config::tile_q, Config::head_dim_qk>;
    using OutputPanel = Panel<Config::tile_q, Config::head_dim_vo>;
    using KeyPanel = Panel<Config::tile_kv, Config::head_dim_qk>;
    using ValuePanel = Panel<Config::tile_kv, Config::head_dim_vo>;

    const abi::AttentionArguments& args;
    const RowTile& tile;
    const int32 split;
    const uint32 shared;
    const int32 lane = threadIdx.x % 32;
    const int32 warp_row = threadIdx.x / 32 % Config::warps_q * 16;
    const int32 warp_key = threadIdx.x / 32 / Config::warps_q * kWarpKeys;

    FragmentRows<Config> rows;
    float m[2] = {-infinity(), -infinity()};
    float l[2] = {0.0f, 0.0f};  // of this thread's columns only, until close()
    float o[kVo / 8][4] = {};
    uint32 q[kQueriesInRegisters ? kQk / 16 : 1][4];

    __device__ void run(uint32& status) {
        const TileKeys keys(tile, split);
        if (args.splits > 1 && keys.end <= keys.first)
            return;  // no row of the tile looks here, so the merge does not either

        rows.set(tile, warp_row);
        const int32 first_tile = keys.first / Config::tile_kv;
        const int32 end_tile =
            keys.end > keys.first ? (keys.end + Config::tile_kv - 1) / Config::tile_kv : first_tile;
        KeyValueTiles<Config> tiles(args, tile.sequence, tile.kv_head, shared, keys.first, keys.end, status);
        start(tiles, first_tile, end_tile);
        for (int32 n = first_tile; n < end_tile; ++n) {
            step(tiles, n, end_tile, keys.masked(n * Config::tile_kv, (n + 1) * Config::tile_kv));
        }
        copy_wait<0>();
        // o takes the place of q, whose layout it need not share. Where no tile was taken, no barrier has
        // said yet that all threads' copies of q have landed and that all warps have read theirs.
        if (first_tile == end_tile) __syncthreads();
        close();
    }

    // What is done once a tile is not unrolled: it would cost more to compile than it saves.
    // Copy groups in flight, in order: Q, K(0), V(0), K(1), ... V(stages - 2), K(stages - 1).
    __device__ void start(const KeyValueTiles<Config>& tiles, int32 first_tile, int32 end_tile) {
        if constexpr (Config::paged) {  // all look-ups before the first store, so that they wait together
            KeyOffsets offsets[Config::stages + 1];
#pragma unroll
            for (int i = 0; i <= Config::stages; ++i) offsets[i] = tiles.look_up(first_tile + i);
#pragma unroll
            for (int i = 0; i <= Config::stages; ++i) tiles.publish(first_tile + i, offsets[i]);
        }
        load_queries();
        copy_commit();
        if constexpr (Config::paged) __syncthreads();
#pragma unroll 1
        for (int i = 0; i < Config::stages; ++i) {
            if (i > 0) {
                if (first_tile + i - 1 < end_tile) tiles.load_v(first_tile + i - 1);
                copy_commit();
            }
            if (first_tile + i < end_tile) tiles.load_k(first_tile + i);
            copy_commit();
        }
        if constexpr (kQueriesInRegisters) {
            copy_wait<2 * Config::stages - 1>();
            __syncthreads();
#pragma unroll
            for (int k = 0; k < kQk / 16; ++k) load_query_fragment(q[k], k);
        }
    }

    __device__ void load_queries() const {
        constexpr int kChunks = kQk / 8;
        const Sequence& sequence = tile.sequence;
        const uint16* base = static_cast<const uint16*>(args.q) + sequence.batch * args.q_batch_stride;
#pragma unroll 1
        for (int32 i = threadIdx.x; i < Config::tile_q * kChunks; i += kThreads) {
            const PackedRow row = tile.row(i / kChunks);
            const int32 chunk = i % kChunks;
            const bool valid = row.valid && chunk < Config::head_dim_qk / 8;
            const uint16* source = base + (sequence.q_first + row.token) * args.q_token_stride +
                                   row.head * args.q_head_stride + chunk * 8;
            copy_16_bytes<Config::alignment>(shared + kLayout.q + QueryPanel::offset(i / kChunks, chunk),
                                             valid ? source : base, valid);
        }
    }

    __device__ void load_query_fragment(uint32 (&fragment)[4], int k) const {
        const uint32 start = shared + kLayout.q + QueryPanel::offset(warp_row + lane % 16, lane / 16);
        load_matrices(fragment, QueryPanel::step(start, 0, k));
    }

    __device__ void step(const KeyValueTiles<Config>& tiles, int32 n, int32 end_tile, bool masked) {
        copy_wait<kPending>();
        __syncthreads();
        if (n - 1 + Config::stages < end_tile) tiles.load_v(n - 1 + Config::stages);
        copy_commit();
        KeyOffsets ahead;
        if constexpr (Config::paged) ahead = tiles.look_up(n + Config::stages + 1);

        float s[kWarpKeys / 8][4] = {};
        multiply_queries(s, n);
        const int32 first_key = n * Config::tile_kv + warp_key;
        rows.adjust(s, args, first_key);
        if (masked) rows.mask(s, first_key);
        uint32 p[kWarpKeys / 16][4];
        online_softmax(s, p);

        copy_wait<kPending>();
        __syncthreads();
        if (n + Config::stages < end_tile) tiles.load_k(n + Config::stages);
        copy_commit();
        if constexpr (Config::paged) tiles.publish(n + Config::stages + 1, ahead);
        multiply_values(p, n);
    }

    // S = Q K^T for the warp's slice of keys.
    __device__ void multiply_queries(float (&s)[kWarpKeys / 8][4], int32 n) {
        const uint32 start = shared + kLayout.k + (n % Config::stages) * kLayout.k_stage +
                             KeyPanel::offset(warp_key + lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
        for (int k = 0; k < kQk / 16; ++k) {
            uint32 here[4];
            if constexpr (!kQueriesInRegisters) load_query_fragment(here, k);
#pragma unroll
            for (int j = 0; j < kWarpKeys / 16; ++j) {
                uint32 b[4];
                load_matrices(b, KeyPanel::step(start, j * 16, k));
                const uint32(&a)[4] = kQueriesInRegisters ? q[kQueriesInRegisters ? k : 0] : here;
                Element::mma(s[2 * j], a, b[0], b[1]);
                Element::mma(s[2 * j + 1], a, b[2], b[3]);
            }
        }
    }

    // Updates m, l and o, and gives P in the layout of the next product's A operand.
    __device__ void online_softmax(float (&s)[kWarpKeys / 8][4], uint32 (&p)[kWarpKeys / 16][4]) {
        const float c = args.scale_log2;
        float reference[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float top = m[i];
#pragma unroll
            for (int j = 0; j < kWarpKeys / 8; ++j) top = fmaxf(top, fmaxf(s[j][2 * i], s[j][2 * i + 1]));
            top = row_max(top);
            reference[i] = top == -infinity() ? 0.0f : top;  // a row that saw nothing yet: exp2(-inf) is 0
            const float rescale = exp2_approx((m[i] - reference[i]) * c);
            m[i] = top;
            l[i] *= rescale;
#pragma unroll
            for (int j = 0; j < kVo / 8; ++j) {
                o[j][2 * i] *= rescale;
                o[j][2 * i + 1] *= rescale;
            }
        }
#pragma unroll
        for (int j = 0; j < kWarpKeys / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                s[j][i] = exp2_approx((s[j][i] - reference[i / 2]) * c);
                l[i / 2] += s[j][i];
            }
        }
#pragma unroll
        for (int j = 0; j < kWarpKeys / 16; ++j) {
            p[j][0] = Element::pack(s[2 * j][0], s[2 * j][1]);
            p[j][1] = Element::pack(s[2 * j][2], s[2 * j][3]);
            p[j][2] = Element::pack(s[2 * j + 1][0], s[2 * j + 1][1]);
            p[j][3] = Element::pack(s[2 * j + 1][2], s[2 * j + 1][3]);
        }
    }

    // O += P V for the warp's slice of keys.
    __device__ void multiply_values(const uint32 (&p)[kWarpKeys / 16][4], int32 n) {
        const uint32 start = shared + kLayout.v + (n % Config::stages) * kLayout.v_stage +
                             ValuePanel::offset(warp_key + lane % 16, lane / 16);
#pragma unroll
        for (int j = 0; j < kWarpKeys / 16; ++j) {
#pragma unroll
            for (int d = 0; d < kVo / 16; ++d) {
                uint32 b[4];
                load_matrices_transposed(b, ValuePanel::step(start, j * 16, d));
                Element::mma(o[2 * d], p[j], b[0], b[1]);
                if (d * 16 + 8 < Config::head_dim_vo) Element::mma(o[2 * d + 1], p[j], b[2], b[3]);
            }
        }
    }

    __device__ void close() {
#pragma unroll
        for (int i = 0; i < 2; ++i) l[i] = row_sum(l[i]);
        if constexpr (Config::warps_kv > 1) {
            join_warps();
        } else if (args.splits > 1) {
            store_partials();
        } else {
            store_rows();
        }
    }

    // One warp's 16 rows, by way of shared memory so that global stores are 16 bytes wide.
    __device__ void store_rows() const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32 in_tile = warp_row + lane / 4 + 8 * i;
            const PackedRow row = tile.row(in_tile);
            const RowResult result = finish_row(m[i], l[i], args.scale_log2, tile.sink(row));
#pragma unroll
            for (int j = 0; j < kVo / 8; ++j) {
                store_shared(shared + kLayout.q + OutputPanel::offset(in_tile, j) + lane % 4 * 4,
                             Element::pack(o[j][2 * i] * result.factor, o[j][2 * i + 1] * result.factor));
            }
            if (args.lse && row.valid && lane % 4 == 0) tile.store_lse(row, result.lse);
        }
        __syncwarp();
        constexpr int kChunks = Config::head_dim_vo / 8;
#pragma unroll 1
        for (int32 i = lane; i < 16 * kChunks; i += 32) {
            const int32 in_tile = warp_row + i / kChunks;
            const PackedRow row = tile.row(in_tile);
            uint32 chunk[4];
            load_shared_16_bytes(chunk, shared + kLayout.q + OutputPanel::offset(in_tile, i % kChunks));
            if (row.valid) store_16_bytes<Config::alignment>(tile.output(row) + i % kChunks * 8, chunk);
        }
    }

    __device__ void store_partials() const {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const PackedRow row = tile.row(warp_row + lane / 4 + 8 * i);
            if (!row.valid) continue;
            const int64 at = tile.partial(row, split);
            tile.store_partial_o<Config>(at, o, i, 1.0f);
            if (lane % 4 == 0) tile.store_partial_ml(at, m[i], l[i]);
        }
    }

    // The warps' softmaxes over their slices of keys, joined in the order of the warps.
    __device__ void join_warps() const {
        constexpr int kRow = abi::partial_row(Config::head_dim_vo);
        constexpr int kWarps = Config::warps_kv;
        extern __shared__ __align__(128) char memory[];
        float* partial_o = reinterpret_cast<float*>(memory + kLayout.partial_o);
        float2* partial_ml = reinterpret_cast<float2*>(memory + kLayout.partial_ml);
        const int32 warp = threadIdx.x / 32;
        __syncthreads();  // k and v are done with
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int32 row = warp * Config::tile_q + lane / 4 + 8 * i;
#pragma unroll
            for (int j = 0; j < kVo / 8; ++j) {
                *reinterpret_cast<float2*>(partial_o + row * kRow + j * 8 + lane % 4 * 2) =
                    make_float2(o[j][2 * i], o[j][2 * i + 1]);
            }
            if (lane % 4 == 0) partial_ml[row] = make_float2(m[i], l[i]);
        }
        __syncthreads();
        constexpr int kChunks = Config::head_dim_vo / 8;
#pragma unroll 1
        for (int32 i = threadIdx.x; i < Config::tile_q * kChunks; i += kThreads) {
            const int32 in_tile = i / kChunks;
            const int32 column = i % kChunks * 8;
            const PackedRow row = tile.row(in_tile);
            if (!row.valid) continue;
            float top = -infinity();
#pragma unroll
            for (int w = 0; w < kWarps; ++w) top = fmaxf(top, partial_ml[w * Config::tile_q + in_tile].x);
            const float reference = top == -infinity() ? 0.0f : top;
            float total = 0.0f;
            float sum[8] = {};
#pragma unroll
            for (int w = 0; w < kWarps; ++w) {
                const float2 ml = partial_ml[w * Config::tile_q + in_tile];
                const float weight = exp2_approx((ml.x - reference) * args.scale_log2);
                total = fmaf(weight, ml.y, total);
                const float* source = partial_o + (w * Config::tile_q + in_tile) * kRow + column;
#pragma unroll
                for (int c = 0; c < 8; ++c) sum[c] = fmaf(weight, source[c], sum[c]);
            }
            if (args.splits > 1) {
                const int64 at = tile.partial(row, split);
                float4* target =
                    reinterpret_cast<float4*>(args.partial_o + at * Config::head_dim_vo + column);
                target[0] = make_float4(sum[0], sum[1], sum[2], sum[3]);
                target[1] = make_float4(sum[4], sum[5], sum[6], sum[7]);
                if (column == 0) tile.store_partial_ml(at, top, total);
            } else {
                const RowResult result = finish_row(top, total, args.scale_log2, tile.sink(row));
#pragma unroll
                for (int c = 0; c < 8; ++c) sum[c] *= result.factor;
                const uint32 packed[4] = {Element::pack(sum[0], sum[1]), Element::pack(sum[2], sum[3]),
                                          Element::pack(sum[4], sum[5]), Element::pack(sum[6], sum[7])};
                store_16_bytes<Config::alignment>(tile.output(row) + column, packed);
                if (args.lse && column == 0) tile.store_lse(row, result.lse);
            }
        }
    }
};

// Grid: x = tile + tiles * (kv_head + kv_heads * split).
template <class Config>
__device__ void attention_mma(const abi::AttentionArguments& args) {
    extern __shared__ __align__(128) char memory[];
    const int32 index = blockIdx.x % args.tiles;
    const int32 rest = blockIdx.x / args.tiles;
    Sequence sequence;
    int32 first_row;
    uint32 status = 0;
    if (find_tile<Config>(args, index, Config::tile_q, sequence, first_row, status)) {
        const RowTile tile{args, sequence, rest % args.kv_heads, first_row, Config::tile_q};
        AttentionMma<Config> attention{args, tile, rest / args.kv_heads, shared_address(memory)};
        attention.run(status);
    }
    if (blockIdx.x == 0) check_lengths<Config>(args, Config::tile_q, threadIdx.x, blockDim.x, status);
    report(args, status);
}

}  // namespace attnsmith
