// How the mma kernels bring keys and values of 8 bits to registers. They lie in shared memory as they are
// stored, and are widened by the warp that multiplies them. One load of 16 bytes a row brings twice as many
// columns as of 16 bits, four neighbours a thread: the sums over columns of Q K^T have them in that order,
// for which queries are read so, too, and those of P V have O's columns in the order of SpreadAccumulator.
#pragma once

#include "attention/mma/loads.cuh"
#include "attention/stored_keys.cuh"

namespace attnsmith {

template <bool Spread, int Columns>
struct OutputSums {
    using Type = Accumulator<Columns>;
};
template <int Columns>
struct OutputSums<true, Columns> {
    using Type = SpreadAccumulator<Columns>;
};

template <class Config>
struct StoredOperands {
    static constexpr bool kWidens = StageOf<Config>::kDequantizes;
    using Element = OperandElement<Config>;
    template <int Columns>
    using Output = typename OutputSums<kWidens, Columns>::Type;
    using Pipeline = MmaPipeline<Config>;
    static constexpr bool kConverts = !is_same<typename Config::Query, Element>;

    // Where keys are widened: queries to what is multiplied, once they are there, and what each of the
    // thread's two rows of products has to be multiplied by. `scale`: of the keys.
    static __device__ void prepare_queries(const Pipeline& pipeline, char* memory, int32 first_row,
                                           float scale, float (&product_scale)[2]) {
        float* const factors = reinterpret_cast<float*>(memory + Config::layout.row_factors);
        if constexpr (kConverts) {
            MmaQueries<Config>::to_fp16(pipeline, factors);
            __syncthreads();
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            product_scale[i] = scale;
            if constexpr (kConverts)
                product_scale[i] *= factors[first_row + fragment_row(threadIdx.x % 32, i)];
        }
    }

    // The fragment of columns k * 16 ... of 16 rows of queries.
    template <class Tile>
    static __device__ void load_queries(uint32 (&fragment)[4], const Tile& queries, int32 first_row, int k) {
        if constexpr (kWidens)
            load_spread_query_fragment(fragment, queries, first_row, k);
        else
            load_query_fragment(fragment, queries, first_row, k);
    }

    // sums += 16 columns of queries times those of eight stored keys.
    static __device__ void multiply_keys(float (&sums)[4], const uint32 (&a)[4], uint32 stored) {
        uint32 b[2];
        Config::KeyValue::widen(b, stored);
        Element::mma(sums, a, b[0], b[1]);
    }

    // The b-th 16 columns of O += 16 weights times the stored values of as many keys. Each eight keys are one
    // register, in which a thread has two columns of one key and then of the next.
    template <class Sums>
    static __device__ void multiply_values(Sums& o, int b, const uint32 (&a)[4], uint32 low, uint32 high) {
        constexpr uint32 kByColumns = 0x3120;
        uint32 first[2], second[2];
        Config::KeyValue::widen(first, __byte_perm(low, 0, kByColumns));
        Config::KeyValue::widen(second, __byte_perm(high, 0, kByColumns));
        Element::mma(o[2 * b], a, first[0], second[0]);
        Element::mma(o[2 * b + 1], a, first[1], second[1]);
    }
};

}  // namespace attnsmith
