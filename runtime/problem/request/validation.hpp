// What a request's fields must be together, for each op. What a field must be by itself is in its row of the
// table of fields.
#pragma once

#include "attnsmith/spec.hpp"

namespace attnsmith::problem {

// Each fills in the spec's defaults. Throws InvalidRequest naming the first field that is wrong, or
// Unsupported.
void validate_attention(AttentionSpec& spec, const PlanSizes& sizes);
void validate_mla(AttentionSpec& spec, const PlanSizes& sizes);
void validate_merge(AttentionSpec& spec, const PlanSizes& sizes);
void validate_append(AttentionSpec& spec, const PlanSizes& sizes);

// What these say of the sizes, of a spec that one of them has seen.
void check_sizes(const AttentionSpec& spec, const PlanSizes& sizes);

}  // namespace attnsmith::problem
