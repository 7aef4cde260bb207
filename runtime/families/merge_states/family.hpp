// Op merge: joins attention states over disjoint keys.
#pragma once

#include "families/family.hpp"

namespace attnsmith::families::merge_states {

const Family& family();

}  // namespace attnsmith::families::merge_states
