// Op append: writes new tokens into a cache of keys and values.
#pragma once

#include "families/family.hpp"

namespace attnsmith::families::append {

const Family& family();

}  // namespace attnsmith::families::append
