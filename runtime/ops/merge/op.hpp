// Op merge, as the registry lists it.
#pragma once

#include "attnsmith/attnsmith.h"
#include "ops/op.hpp"
#include "problem/words.hpp"

namespace attnsmith::ops::merge {

inline constexpr problem::Word<Op> kWord{"merge", Op::merge, ATTNSMITH_OP_MERGE};
extern const problem::OpRequest kRequest;  // fields.cpp
extern const OpTraits kOp;                 // steps.cpp

}  // namespace attnsmith::ops::merge
