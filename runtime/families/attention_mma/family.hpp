// Attention by mma.sync: every SM from 80 on.
#pragma once

#include "families/family.hpp"

namespace attnsmith::families::attention_mma {

const Family& family();

}  // namespace attnsmith::families::attention_mma
