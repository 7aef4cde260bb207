// What is done to a logit after the product and before the mask: a soft cap, ALiBi. All kernels come here and
// nowhere else.
#pragma once

#include "attention/operand_stage.cuh"
#include "attention/tiles.cuh"
#include "common/fragment.cuh"
#include "common/math.cuh"

namespace attnsmith {

// For one row.
template <class Config>
struct RowLogit {
    float slope;  // ALiBi's, and the query's position
    int32 position;

    __device__ void set(const abi::AttentionArguments& args, const Sequence& sequence, const PackedRow& row) {
        if constexpr (Config::alibi) {
            position = sequence.position(row.token);
            slope = row.valid ? args.alibi_slopes[row.head] : 0.0f;
        }
    }

    // All distances below 2^24 are exact, as their sums are.
    __device__ float distance(int32 key) const { return Config::alibi ? float(key - position) : 0.0f; }

    // The logit of a product q k with a key at this distance from the query.
    template <class Tanh>
    __device__ float apply(float product, const abi::AttentionArguments& args, float distance) const {
        float x = product;
        if constexpr (Config::softcap)
            x = args.softcap * Tanh::of(product * args.softcap_scale);
        else if constexpr (Config::alibi)
            x = product * args.scale;
        if constexpr (Config::alibi) x = fmaf(slope, distance, x);
        return x;
    }
};

// For a thread's two rows of an accumulator.
template <class Config>
struct LogitTransform {
    // Whether products with quantized keys become logits in the softmax, by a factor of each row, which costs
    // nothing there. What is transformed before has to be a logit already.
    static constexpr bool kFactorsInSoftmax =
        StageOf<Config>::kIsQuantized && !Config::softcap && !Config::alibi;

    RowLogit<Config> rows[2];

    __device__ void set(const abi::AttentionArguments& args, const Sequence& sequence,
                        const PackedRow (&packed)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) rows[i].set(args, sequence, packed[i]);
    }

    // The logits of keys from `first_key` on.
    template <class Scores>
    __device__ void apply(Scores& s, const abi::AttentionArguments& args, int32 first_key) const {
        if constexpr (Config::softcap || Config::alibi) {
            // To the first key of the thread's.
            float distance[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) distance[i] = rows[i].distance(first_key + Scores::first_column());
            s.for_each([&](int row, int column, float& x) {
                x = rows[row].template apply<FastTanh>(x, args, distance[row] + float(column));
            });
        }
    }
};

}  // namespace attnsmith
