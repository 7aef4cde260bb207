// Op top_k, as the registry lists it.
#pragma once

#include "attnsmith/attnsmith.h"
#include "ops/op.hpp"
#include "problem/words.hpp"

namespace attnsmith::ops::top_k {

inline constexpr problem::Word<Op> kWord{"top_k", Op::top_k, ATTNSMITH_OP_TOP_K};
extern const problem::OpRequest kRequest;  // fields.cpp
extern const OpTraits kOp;                 // steps.cpp

}  // namespace attnsmith::ops::top_k
