// Before an attention that reads keys and values of 8 bits from the workspace: widens them into it.
#pragma once

#include "families/family.hpp"

namespace attnsmith::families::widen_keys {

const Family& family();

}  // namespace attnsmith::families::widen_keys
