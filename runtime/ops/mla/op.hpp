// Op mla, latent attention, as the registry lists it.
#pragma once

#include "attnsmith/attnsmith.h"
#include "ops/op.hpp"
#include "problem/words.hpp"

namespace attnsmith::ops::mla {

inline constexpr problem::Word<Op> kWord{"mla", Op::mla, ATTNSMITH_OP_MLA};
extern const problem::OpRequest kRequest;  // fields.cpp
extern const OpTraits kOp;                 // steps.cpp

}  // namespace attnsmith::ops::mla
