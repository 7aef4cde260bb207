// The stage between the load of keys and values and the product (abi/operand_stage.h) as a type: what is
// multiplied, and whether this kernel widens it.
//
// clang-format off
//   stage                where a tile is widened                            kernels
//   AsLoaded             not at all                                         all
//   DequantInRegisters   in registers, by the warp that multiplies it       mma
//   DequantRing          from the ring of stored tiles to another           persistent (persistent/dequantizer)
//   DequantInPlace       where it lies, by the warp that loads it           persistent, latents (persistent/loaders)
//   DequantAhead         in the workspace, by the kernel before this one    persistent (attention/widen.cuh)
// clang-format on
//
// Products of fp8 operands are a stage more: keys as they are loaded, values transposed in shared memory, and
// an Element of 8 bits.
#pragma once

#include "abi/operand_stage.h"
#include "common/element.cuh"

namespace attnsmith {

template <abi::OperandStage Stage>
struct StageType {
    static constexpr bool kIsQuantized = true;  // K and V are stored in 8 bits and have scales
    static constexpr bool kDequantizes = Stage != abi::OperandStage::dequant_ahead;  // in this kernel
    template <class Query>
    using Element = f16;  // what is multiplied: fp16 has all numbers of e4m3 and e5m2
};
template <>
struct StageType<abi::OperandStage::as_loaded> {
    static constexpr bool kIsQuantized = false;
    static constexpr bool kDequantizes = false;
    template <class Query>
    using Element = Query;
};

using AsLoaded = StageType<abi::OperandStage::as_loaded>;
using DequantInRegisters = StageType<abi::OperandStage::dequant_in_registers>;
using DequantRing = StageType<abi::OperandStage::dequant_ring>;
using DequantInPlace = StageType<abi::OperandStage::dequant_in_place>;
using DequantAhead = StageType<abi::OperandStage::dequant_ahead>;

template <class Config>
using StageOf = StageType<Config::operand_stage>;
template <class Config>
using OperandElement = typename StageOf<Config>::template Element<typename Config::Query>;

template <class A, class B>
inline constexpr bool is_same = false;
template <class A>
inline constexpr bool is_same<A, A> = true;

}  // namespace attnsmith
