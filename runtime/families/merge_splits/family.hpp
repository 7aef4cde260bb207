// Behind a split attention: joins what its splits left in the workspace.
#pragma once

#include "families/family.hpp"

namespace attnsmith::families::merge_splits {

const Family& family();

}  // namespace attnsmith::families::merge_splits
