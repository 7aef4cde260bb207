// Op attention, as the registry lists it.
#pragma once

#include "attnsmith/attnsmith.h"
#include "ops/op.hpp"
#include "problem/words.hpp"

namespace attnsmith::ops::attention {

inline constexpr problem::Word<Op> kWord{"attention", Op::attention, ATTNSMITH_OP_ATTENTION};
extern const problem::OpRequest kRequest;  // fields.cpp
extern const OpTraits kOp;                 // steps.cpp

}  // namespace attnsmith::ops::attention
