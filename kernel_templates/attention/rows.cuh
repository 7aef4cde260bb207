// What a tile's rows are, which keys they see, and what is done to their logits: one place for every family
// whose accumulators lie as those of mma do. A thread has two rows of each 16x8 fragment, lane / 4 and
// lane / 4 + 8, and of these the columns lane % 4 * 2 and the next.
#pragma once

#include "attention/sequence.cuh"
#include "attention/softmax.cuh"
#include "common/math.cuh"

namespace attnsmith {

struct PackedRow {
    int32 token, head;
    bool valid;
};

// Packed rows first .. first + count - 1 of a sequence and KV head.
struct RowTile {
    const abi::AttentionArguments& args;
    const Sequence& sequence;
    int32 kv_head, first, count;

    __device__ PackedRow row(int32 in_tile) const {
        const int32 row = first + in_tile;
        const int32 token = row / args.group;
        return {token, kv_head * args.group + row - token * args.group,
                in_tile < count && row < sequence.rows(args)};
    }

    __device__ float sink(const PackedRow& row) const {
        return args.sinks && row.valid ? args.sinks[row.head] * kLog2e : -infinity();
    }

    __device__ uint16* output(const PackedRow& row) const {
        return static_cast<uint16*>(args.o) + sequence.batch * args.o_batch_stride +
               (sequence.q_first + row.token) * args.o_token_stride + row.head * args.o_head_stride;
    }

    __device__ void store_lse(const PackedRow& row, float lse) const {
        args.lse[sequence.batch * args.lse_batch_stride +
                 (sequence.q_first + row.token) * args.lse_token_stride + row.head * args.lse_head_stride] =
            lse * kLn2;
    }

    __device__ int64 partial(const PackedRow& row, int32 split) const {
        return split * args.rows + sequence.partial_row(args, row.token, row.head);
    }

    __device__ void store_partial_ml(int64 partial, float maximum, float sum) const {
        reinterpret_cast<float2*>(args.partial_ml)[partial] = make_float2(maximum, sum);
    }

    // Of one thread's fragment row: columns lane % 4 * 2 + 8 j and the next.
    template <class Config, int N>
    __device__ void store_partial_o(int64 partial, const float (&o)[N][4], int i, float factor) const {
        float* target = args.partial_o + partial * Config::head_dim_vo + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < Config::head_dim_vo / 8; ++j) {
            *reinterpret_cast<float2*>(target + j * 8) =
                make_float2(o[j][2 * i] * factor, o[j][2 * i + 1] * factor);
        }
    }
};

// The keys that any row of a tile sees within its split, and whether a block of keys has to be masked.
struct TileKeys {
    int32 first, end;               // keys that are read: first .. end - 1; none where end <= first
    int32 seen_by_all, seen_until;  // every row sees the keys seen_by_all .. seen_until - 1

    TileKeys() = default;
    static __device__ TileKeys nothing() {
        TileKeys keys;
        keys.first = keys.end = keys.seen_by_all = keys.seen_until = 0;
        return keys;
    }
    __device__ TileKeys(const RowTile& tile, int32 split) {
        const abi::AttentionArguments& args = tile.args;
        const int32 last_row = min(tile.first + tile.count, tile.sequence.rows(args)) - 1;
        const KeyRange of_first = visible_keys(args, tile.sequence, tile.first / args.group);
        const KeyRange of_last = visible_keys(args, tile.sequence, last_row / args.group);
        const int32 chunk_first = args.splits > 1 ? split * args.chunk : 0;
        const int32 chunk_end = args.splits > 1
                                    ? int32(min(int64(chunk_first) + args.chunk, int64(abi::kUnbounded) + 1))
                                    : of_last.end;
        first = max(of_first.first, chunk_first);
        end = min(of_last.end, chunk_end);
        seen_by_all = of_last.first;
        seen_until = of_first.end;
    }

    __device__ bool masked(int32 block_first, int32 block_end) const {
        return block_first < seen_by_all || block_end > seen_until;
    }
};

template <class Config>
struct FragmentRows {
    int32 visible_first[2], visible_end[2];
    float slope[2];
    int32 position[2];

    // `in_tile`: the row of the tile that is the fragment's row 0.
    __device__ void set(const RowTile& tile, int32 in_tile) {
        const int32 first = in_tile + threadIdx.x % 32 / 4;
        const PackedRow both[2] = {tile.row(first), tile.row(first + 8)};
        set(tile.args, tile.sequence, both);
    }

    __device__ void set(const abi::AttentionArguments& args, const Sequence& sequence,
                        const PackedRow (&both)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const KeyRange keys = visible_keys(args, sequence, both[i].token);
            visible_first[i] = keys.first;
            visible_end[i] = both[i].valid ? keys.end : 0;
            if constexpr (Config::alibi) {
                position[i] = sequence.position(both[i].token);
                slope[i] = both[i].valid ? args.alibi_slopes[both[i].head] : 0.0f;
            }
        }
    }

    static __device__ int32 key_of(int32 first_key, int j, int i) {
        return first_key + j * 8 + threadIdx.x % 4 * 2 + i % 2;
    }

    // The place of everything that is done to a logit after the product and before the mask.
    template <int N>
    __device__ void adjust(float (&s)[N][4], const abi::AttentionArguments& args, int32 first_key) const {
        if constexpr (Config::softcap || Config::alibi) {
            // From a query to the first key of its thread; all below 2^24 are exact, as their sums are.
            float distance[2] = {};
            if constexpr (Config::alibi) {
#pragma unroll
                for (int i = 0; i < 2; ++i) distance[i] = float(key_of(first_key, 0, 0) - position[i]);
            }
#pragma unroll
            for (int j = 0; j < N; ++j) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float x;
                    if constexpr (Config::softcap)
                        x = args.softcap * tanh_exact(s[j][i] * args.softcap_scale);
                    else
                        x = s[j][i] * args.scale;
                    if constexpr (Config::alibi)
                        x = fmaf(slope[i / 2], distance[i / 2] + float(j * 8 + i % 2), x);
                    s[j][i] = x;
                }
            }
        }
    }

    // A bit for each of this thread's columns that is one of the first `keys` keys.
    static __device__ uint32 columns_before(int32 keys) {
        keys = max(keys, 0);
        uint32 x;
        asm("shl.b32 %0, 1, %1;" : "=r"(x) : "r"(keys / 8 * 2 + min(keys % 8, 2)));  // 0 from 32 on
        return x - 1;
    }

    // By selection, never by adding: whatever an invisible key's logit is, it has no influence.
    template <int N>
    __device__ void mask(float (&s)[N][4], int32 first_key) const {
        constexpr int kWords = (N + 15) / 16;  // of 32 columns of this thread, two of each eight keys
        const int32 origin = key_of(first_key, 0, 0);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int word = 0; word < kWords; ++word) {
                const uint32 seen = columns_before(visible_end[i] - origin - word * 128) &
                                    ~columns_before(visible_first[i] - origin - word * 128);
#pragma unroll
                for (int column = 0; column < 32 && word * 16 + column / 2 < N; ++column) {
                    float& x = s[word * 16 + column / 2][2 * i + column % 2];
                    x = seen >> column & 1 ? x : -infinity();
                }
            }
        }
    }
};

}  // namespace attnsmith
