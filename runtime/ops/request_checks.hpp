// Checks of a request's fields that several ops make. What a field must be by itself is in its row of the
// table of fields. Each fills in the defaults of its fields, and throws InvalidRequest naming the first that
// is wrong, or Unsupported.
#pragma once

#include <cstdint>
#include <string_view>

#include "attnsmith/spec.hpp"

namespace attnsmith::ops {

// One head dimension; `shown_as`: what an Unsupported calls it.
void check_head_dim(std::string_view field, std::int64_t value, std::string_view shown_as);
// One head_dim, as most callers give it, or both by their own names.
void normalise_head_dims(AttentionSpec& spec);
void normalise_heads(AttentionSpec& spec);
// head_dim_ckv and head_dim_kpe, and the one head that all query heads share.
void normalise_latents(AttentionSpec& spec);

// A finite factor above 0, of ordinary size; `none`: how to ask for none, for the message.
void check_factor(std::string_view field, double value, std::string_view none = "");
// A number of columns that are stored in 8 bits.
void check_fp8_head_dim(std::string_view field, std::int64_t value, std::string_view dtype_field,
                        DType dtype);

void normalise_output(AttentionSpec& spec);
void normalise_keys_and_values(AttentionSpec& spec);
void normalise_storage(AttentionSpec& spec);

}  // namespace attnsmith::ops
