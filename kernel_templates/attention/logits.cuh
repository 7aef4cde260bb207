// What is done to a logit after the product and before the mask: a soft cap, ALiBi. Both kernels come here
// and nowhere else.
#pragma once

#include "attention/tiles.cuh"
#include "common/fragment.cuh"
#include "common/math.cuh"

namespace attnsmith {

// For a thread's two rows of an accumulator.
template <class Config>
struct LogitTransform {
    float slope[2];  // ALiBi's, and the query's position
    int32 position[2];

    __device__ void set(const abi::AttentionArguments& args, const Sequence& sequence,
                        const PackedRow (&rows)[2]) {
        if constexpr (Config::alibi) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                position[i] = sequence.position(rows[i].token);
                slope[i] = rows[i].valid ? args.alibi_slopes[rows[i].head] : 0.0f;
            }
        }
    }

    // The logits of keys from `first_key` on.
    template <int Keys>
    __device__ void apply(Accumulator<Keys>& s, const abi::AttentionArguments& args, int32 first_key) const {
        if constexpr (Config::softcap || Config::alibi) {
            // From a query to the first key of its thread; all below 2^24 are exact, as their sums are.
            float distance[2] = {};
            if constexpr (Config::alibi) {
#pragma unroll
                for (int i = 0; i < 2; ++i) distance[i] = float(first_key + fragment_column() - position[i]);
            }
#pragma unroll
            for (int j = 0; j < Keys / 8; ++j) {
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
};

}  // namespace attnsmith
