// Keys and values that are stored in 8 bits: their scales, and the queries that they are multiplied with.
//
//   fp16 has all numbers of e4m3 and e5m2, and weights are at most 1, so that both products are made in fp16.
//   Its exponents are too few for queries in bf16: a row of these is divided by a power of two, which its
//   logits are multiplied by. What is 2^29 times less than the largest of its row loses bits, far behind
//   those that sums in fp32 have.
#pragma once

#include "attention/operand_stage.cuh"
#include "attention/tiles.cuh"
#include "common/element.cuh"
#include "common/fragment.cuh"
#include "common/math.cuh"
#include "common/shared.cuh"

namespace attnsmith {

// What the stored keys, or values, of a KV head are multiplied by. NaN for what is no ordinary number above
// 0.
__device__ inline float stored_scale(const abi::AttentionArguments& args, const float* scales,
                                     int32 kv_head) {
    if (scales == nullptr) return 1.0f;
    const float scale = scales[kv_head * args.scale_stride];
    return scale > 0.0f && scale < infinity() ? scale : not_a_number();
}

// The scale of the KV head's keys. Says of it, and of that of its values, whether it is one.
__device__ inline float key_scale(const abi::AttentionArguments& args, int32 kv_head, uint32& status) {
    const float of_keys = stored_scale(args, args.k_scale, kv_head);
    const float of_values = stored_scale(args, args.v_scale, kv_head);
    if (of_keys != of_keys || of_values != of_values) status |= abi::kStatusScaleNotPositive;
    return of_keys;
}

// The power of two that a row of queries in bf16 is multiplied by to be fp16, and its inverse, by which its
// logits are. Both are ordinary numbers.
struct QueryFactor {
    float factor, inverse;

    // `top`: the largest magnitude of the row.
    __device__ explicit QueryFactor(float top) {
        constexpr int kBias = 127;
        constexpr int kLargest = 14;  // exponent of the row's largest afterwards: fp16 has up to 15
        const int32 exponent = min(2 * kBias + kLargest - int32(__float_as_uint(top) >> 23), 2 * kBias - 1);
        factor = __uint_as_float(uint32(exponent) << 23);
        inverse = __uint_as_float(uint32(2 * kBias - exponent) << 23);
    }
};

// The larger of `top` and of the magnitudes of a pair of bf16.
__device__ inline float largest_of(float top, uint32 pair) {
    const float2 x = bf16::unpack(pair);
    return fmaxf(top, fmaxf(fabsf(x.x), fabsf(x.y)));
}
__device__ inline uint32 pair_to_fp16(uint32 pair, float factor) {
    const float2 x = bf16::unpack(pair);
    return f16::pack(x.x * factor, x.y * factor);
}

// The largest magnitude of a lane's chunks of a row of bf16.
template <class Tile>
__device__ inline float largest_of_chunks(const Tile& tile, int32 row) {
    float top = 0.0f;
    for (int32 chunk = threadIdx.x % 32; chunk < Tile::kRowChunks; chunk += 32) {
        uint32 x[4];
        load_shared_16_bytes(x, tile.chunk(row, chunk));
#pragma unroll
        for (int i = 0; i < 4; ++i) top = largest_of(top, x[i]);
    }
    return top;
}

// A lane's chunks of a row of bf16 to fp16 in their places.
template <class Tile>
__device__ inline void chunks_to_fp16(const Tile& tile, int32 row, float scale) {
    for (int32 chunk = threadIdx.x % 32; chunk < Tile::kRowChunks; chunk += 32) {
        uint32 x[4];
        load_shared_16_bytes(x, tile.chunk(row, chunk));
        uint64 packed[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) packed[i] = pair_to_fp16(x[i], scale);
        store_shared_16_bytes(tile.chunk(row, chunk), int64(packed[0] | packed[1] << 32),
                              int64(packed[2] | packed[3] << 32));
    }
}

// A warp's 16 rows of bf16 to fp16, each times a power of two, by whose inverse product_scale is multiplied.
// address(step): of the lane's row of the matrices of 16 columns; take(step, x) has them then. They are
// loaded twice, since not all kernels have registers for all of them.
template <int Steps, class Address, class Take>
__device__ void matrices_to_fp16(const Address& address, float (&product_scale)[2], const Take& take) {
    // Those of a row in registers are at most 16 steps.
    constexpr int kUnroll = Steps > 16 ? 4 : Steps;
    float top[2] = {0.0f, 0.0f};
#pragma unroll kUnroll
    for (int step = 0; step < Steps; ++step) {
        uint32 x[4];
        load_matrices(x, address(step));
#pragma unroll
        for (int j = 0; j < 4; ++j) top[j % 2] = largest_of(top[j % 2], x[j]);
    }
    const QueryFactor factors[2] = {QueryFactor(row_max(top[0])), QueryFactor(row_max(top[1]))};
#pragma unroll
    for (int i = 0; i < 2; ++i) product_scale[i] *= factors[i].inverse;
#pragma unroll kUnroll
    for (int step = 0; step < Steps; ++step) {
        uint32 x[4];
        load_matrices(x, address(step));
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = pair_to_fp16(x[j], factors[j % 2].factor);
        take(step, x);
    }
}

// Rows of bf16 to fp16, each times a power of two; what each was divided by to factors[row]. Where a row lies
// in two tiles both are multiplied by the same. By all threads of the block, between barriers.
template <class... Tiles>
__device__ void queries_to_fp16(int32 rows, int32 threads, float* factors, const Tiles&... tiles) {
#pragma unroll 1
    for (int32 row = threadIdx.x / 32; row < rows; row += threads / 32) {
        float top = 0.0f;
        ((top = fmaxf(top, largest_of_chunks(tiles, row))), ...);
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, distance));
        const QueryFactor of_row(top);
        (chunks_to_fp16(tiles, row, of_row.factor), ...);
        if (threadIdx.x % 32 == 0) factors[row] = of_row.inverse;
    }
}

}  // namespace attnsmith
