// The stage between the load of keys and values and the product (abi/operand_stage.h) as a type: what is
// multiplied, and whether this kernel widens it.
//
//   stage                where a tile is widened                           kernels
//   AsLoaded             not at all                                        all
//   DequantInRegisters   in registers, by the warp that multiplies it      mma
//   DequantRing          from the ring of stored tiles to another          persistent
//   (persistent/dequantizer) DequantInPlace       where it lies, by the warp that loads it persistent,
//   latents (persistent/loaders) DequantAhead         in the workspace, by the kernel before this one
//   persistent (attention/widen.cuh)
//
// Products of fp8 operands are a stage more: keys as they are loaded, values transposed in shared memory, and
// an Element of 8 bits.
#pragma once

#include "abi/operand_stage.h"
#include "common/element.cuh"

namespace attnsmith {

struct AsLoaded {
    static constexpr bool kIsQuantized = false;  // K and V are stored in 8 bits and have scales
    static constexpr bool kDequantizes = false;  // in this kernel
    template <class Query>
    using Element = Query;  // what is multiplied
};

// fp16 has all numbers of e4m3 and e5m2.
template <bool Here>
struct DequantToFp16 {
    static constexpr bool kIsQuantized = true;
    static constexpr bool kDequantizes = Here;
    template <class Query>
    using Element = f16;
};
struct DequantInRegisters : DequantToFp16<true> {};
struct DequantRing : DequantToFp16<true> {};
struct DequantInPlace : DequantToFp16<true> {};
struct DequantAhead : DequantToFp16<false> {};

template <class A, class B>
inline constexpr bool is_same = false;
template <class A>
inline constexpr bool is_same<A, A> = true;

template <abi::OperandStage>
struct StageType;
template <>
struct StageType<abi::OperandStage::as_loaded> {
    using Type = AsLoaded;
};
template <>
struct StageType<abi::OperandStage::dequant_in_registers> {
    using Type = DequantInRegisters;
};
template <>
struct StageType<abi::OperandStage::dequant_ring> {
    using Type = DequantRing;
};
template <>
struct StageType<abi::OperandStage::dequant_in_place> {
    using Type = DequantInPlace;
};
template <>
struct StageType<abi::OperandStage::dequant_ahead> {
    using Type = DequantAhead;
};

template <class Config>
using StageOf = typename StageType<Config::operand_stage>::Type;
template <class Config>
using OperandElement = typename StageOf<Config>::template Element<typename Config::Query>;

}  // namespace attnsmith
