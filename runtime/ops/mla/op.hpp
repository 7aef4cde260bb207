// Op mla, latent attention, as the registry lists it.
#pragma once

#include "ops/op.hpp"

namespace attnsmith::ops::mla {

extern const problem::OpRequest kRequest;  // fields.cpp
extern const OpTraits kOp;                 // steps.cpp

}  // namespace attnsmith::ops::mla
