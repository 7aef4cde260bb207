// A head's row in a warp's registers: chunks of 8 neighbouring columns, chunk c in lane c % kLanes of those
// that share the row. Loads, stores, the norm, and the columns that others hold.
#pragma once

#include "abi/append_arguments.h"
#include "common/copy.cuh"
#include "common/element.cuh"
#include "common/float8.cuh"

namespace attnsmith {

// What Config::rope says.
inline constexpr int kRopeHalf = 1;

using abi::kAppendChunk;

// Words of `Bytes` that begin at a multiple of `Alignment`.
template <int Words, int Alignment>
__device__ void load_words(uint32 (&words)[Words], const void* source) {
    static_assert(Words % 4 == 0 || Words == 2, "16 or 8 bytes at a time");
    if constexpr (Words % 4 == 0) {
#pragma unroll
        for (int i = 0; i < Words / 4; ++i) {
            uint32 some[4];
            load_16_bytes<Alignment>(some, static_cast<const char*>(source) + 16 * i);
#pragma unroll
            for (int j = 0; j < 4; ++j) words[4 * i + j] = some[j];
        }
    } else if constexpr (Alignment >= 8) {
        const uint2 both = *static_cast<const uint2*>(source);
        words[0] = both.x, words[1] = both.y;
    } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            if constexpr (Alignment == 4) {
                words[i] = static_cast<const uint32*>(source)[i];
            } else {
                const uint16* half = static_cast<const uint16*>(source) + 2 * i;
                words[i] = half[0] | uint32(half[1]) << 16;
            }
        }
    }
}

template <int Alignment>
__device__ void store_8_bytes(void* target, const uint32 (&words)[2]) {
    if constexpr (Alignment >= 8) {
        *static_cast<uint2*>(target) = make_uint2(words[0], words[1]);
    } else if constexpr (Alignment == 4) {
        static_cast<uint32*>(target)[0] = words[0];
        static_cast<uint32*>(target)[1] = words[1];
    } else {
        uint16* half = static_cast<uint16*>(target);
#pragma unroll
        for (int i = 0; i < 4; ++i) half[i] = uint16(words[i / 2] >> (i % 2 * 16));
    }
}

template <class Element>
__device__ void unpack_chunk(float (&x)[8], const uint32 (&packed)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = Element::unpack(packed[i]);
        x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
    }
}

// `Count` numbers of `Stored`, which is fp32 or an element type, from a base of the alignment class on.
template <int Count, int Alignment, class Stored>
__device__ void load_floats(float* x, const Stored* source) {
    constexpr int kSize = int(sizeof(Stored));
    // Where the first one is a multiple of Count: its own alignment, too.
    constexpr int kBytes = Count * kSize < Alignment ? Count * kSize : Alignment;
    constexpr int kAlignment = kBytes < kSize ? kSize : kBytes;
    if constexpr (Count == 1) {
        if constexpr (kSize == 4)
            *x = source->value;
        else
            *x = Stored::unpack(source->bits).x;
    } else {
        uint32 words[Count * kSize / 4];
        load_words<Count * kSize / 4, kAlignment>(words, source);
#pragma unroll
        for (int i = 0; i < Count; ++i) {
            if constexpr (kSize == 4) {
                x[i] = __uint_as_float(words[i]);
            } else {
                const float2 pair = Stored::unpack(words[i / 2]);
                x[i] = i % 2 == 0 ? pair.x : pair.y;
            }
        }
    }
}

// Eight columns, rounded to what the target has: SignificandBits of an 8-bit float, or 0: as the element.
template <class Element, int SignificandBits, int Alignment>
__device__ void store_chunk(void* row, int32 column, const float (&x)[8]) {
    if constexpr (SignificandBits == 0) {
        const uint32 packed[4] = {Element::pack(x[0], x[1]), Element::pack(x[2], x[3]),
                                  Element::pack(x[4], x[5]), Element::pack(x[6], x[7])};
        store_16_bytes<Alignment>(static_cast<Element*>(row) + column, packed);
    } else {
        using Stored = Float8<SignificandBits>;
        const uint32 packed[2] = {Stored::pack(x[0], x[1]) | Stored::pack(x[2], x[3]) << 16,
                                  Stored::pack(x[4], x[5]) | Stored::pack(x[6], x[7]) << 16};
        store_8_bytes<Alignment>(static_cast<char*>(row) + column, packed);
    }
}

// A chunk's squares, added in the order of its columns. Spelled out, as all that follows, so that the
// compiler fuses nothing: a reference on the CPU has the same bits.
__device__ inline float sum_of_squares(const float (&x)[8]) {
    float sum = __fmul_rn(x[0], x[0]);
#pragma unroll
    for (int i = 1; i < 8; ++i) sum = __fmaf_rn(x[i], x[i], sum);
    return sum;
}

// The sum of what lanes have that share a row, the same in all of them: a butterfly adds those that are 1
// apart, then 2, 4, ...
template <int Lanes>
__device__ float sum_over_lanes(float sum) {
#pragma unroll
    for (int distance = 1; distance < Lanes; distance *= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, distance));
    return sum;
}

// 1 / sqrt(mean of squares + eps) of a row, from the sums of a lane's chunks.
template <int Lanes, int Chunks>
__device__ float norm_factor(const float (&sums)[Chunks], int columns, float eps) {
    float sum;
    if constexpr (Chunks == 1)
        sum = sum_over_lanes<Lanes>(sums[0]);
    else if constexpr (Lanes == 32)
        sum = sum_over_lanes<Lanes>(__fadd_rn(sums[0], sums[1]));
    else  // the last step of the butterfly
        sum = __fadd_rn(sum_over_lanes<Lanes>(sums[0]), sum_over_lanes<Lanes>(sums[1]));
    return __frcp_rn(__fsqrt_rn(__fadd_rn(__fmul_rn(sum, 1.0f / float(columns)), eps)));
}

// A row's chunks in a lane.
template <int Lanes, int Chunks>
struct RowChunks {
    float x[Chunks][8];

    // Element `i` of chunk `chunk` of the lane's row, whichever lane has it. By a whole warp; a chunk that
    // there is not gives some number.
    __device__ float at(int32 chunk, int i) const {
        const float first = __shfl_sync(0xffffffffu, x[0][i], chunk, Lanes);
        if constexpr (Chunks == 1) {
            return first;
        } else {
            const float second = __shfl_sync(0xffffffffu, x[1][i], chunk, Lanes);
            return chunk & Lanes ? second : first;
        }
    }
};

}  // namespace attnsmith
