// Op top_k: selects the largest scores of rows.
#pragma once

#include "families/family.hpp"

namespace attnsmith::families::top_k {

const Family& family();

}  // namespace attnsmith::families::top_k
