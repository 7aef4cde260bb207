// Which words of a request have kernels in this version; the others are meaningful, and Unsupported.
#pragma once

#include "attnsmith/spec.hpp"

namespace attnsmith::problem {

bool is_built(Op op);
// Throws Unsupported for a type that tensors of q, k, v and o could have, and that no kernel is built for.
void check_built(DType dtype);

}  // namespace attnsmith::problem
