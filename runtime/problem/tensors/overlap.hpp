// Whether tensors share memory.
#pragma once

#include "attnsmith/tensor.hpp"

namespace attnsmith::problem {

// Whether two tensors can share an element; false only where it is certain that they do not.
bool may_overlap(const Tensor& a, const Tensor& b);

// Whether two elements of one tensor can lie at the same place; false only where it is certain that none do.
bool may_overlap_itself(const Tensor& tensor);

}  // namespace attnsmith::problem
