// Attention by wgmma and TMA, in persistent kernels: sm_90.
#pragma once

#include "families/family.hpp"

namespace attnsmith::families::attention_wgmma {

const Family& family();

}  // namespace attnsmith::families::attention_wgmma
