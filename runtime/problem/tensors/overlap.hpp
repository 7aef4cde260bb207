// Whether tensors share memory, beside may_overlap() of tensors.hpp.
#pragma once

#include "attnsmith/tensor.hpp"

namespace attnsmith::problem {

// Whether two elements of one tensor can lie at the same place; false only where it is certain that none do.
bool may_overlap_itself(const Tensor& tensor);

}  // namespace attnsmith::problem
