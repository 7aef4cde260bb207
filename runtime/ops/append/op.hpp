// Op append, as the registry lists it.
#pragma once

#include "attnsmith/attnsmith.h"
#include "ops/op.hpp"
#include "problem/words.hpp"

namespace attnsmith::ops::append {

inline constexpr problem::Word<Op> kWord{"append", Op::append, ATTNSMITH_OP_APPEND};
extern const problem::OpRequest kRequest;  // fields.cpp
extern const OpTraits kOp;                 // steps.cpp

}  // namespace attnsmith::ops::append
