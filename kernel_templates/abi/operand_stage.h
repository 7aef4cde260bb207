// The stage between the load of keys and values and the product: how what is stored becomes what the tensor
// core multiplies.
#pragma once

#include "abi/integers.h"

namespace attnsmith::abi {

enum class OperandStage : int32 {
    as_loaded,             // multiplied as they are stored
    dequant_in_registers,  // the warp that multiplies a tile widens it as it reads it from shared memory
    dequant_ring,          // warps of their own widen each tile, from the ring of stored tiles to another
    dequant_in_place,      // the warps that load a tile widen it where it lies
    dequant_ahead          // the kernel before this one wrote them into the workspace (attention/widen.cuh)
};

// Whether keys and values are stored in 8 bits and have scales.
ATTNSMITH_HOST_DEVICE constexpr bool is_quantized(OperandStage stage) {
    return stage != OperandStage::as_loaded;
}

// Bytes of an element as it is multiplied; `loaded`: as it is loaded.
ATTNSMITH_HOST_DEVICE constexpr int32 operand_bytes(OperandStage stage, int32 loaded) {
    return stage == OperandStage::as_loaded ? loaded : 2;
}

}  // namespace attnsmith::abi
