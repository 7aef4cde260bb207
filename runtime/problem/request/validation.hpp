// What a request's fields must be together, for each op. What a field must be by itself is in its row of the
// table of fields.
#pragma once

#include "problem/request/problem.hpp"

namespace attnsmith::problem {

void validate_attention(Problem& problem);
void validate_mla(Problem& problem);
void validate_merge(Problem& problem);
void validate_append(Problem& problem);

}  // namespace attnsmith::problem
