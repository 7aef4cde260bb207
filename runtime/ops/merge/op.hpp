// Op merge, as the registry lists it.
#pragma once

#include "ops/op.hpp"

namespace attnsmith::ops::merge {

extern const problem::OpRequest kRequest;  // fields.cpp
extern const OpTraits kOp;                 // steps.cpp

}  // namespace attnsmith::ops::merge
