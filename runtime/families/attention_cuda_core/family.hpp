// Attention on CUDA cores, with products, weights and sums in fp32: precision "high", on every SM from 80 on.
#pragma once

#include "families/family.hpp"

namespace attnsmith::families::attention_cuda_core {

const Family& family();

}  // namespace attnsmith::families::attention_cuda_core
