// attnsmith_spec and attnsmith_sizes as what they are in C++, and back.
#pragma once

#include <cstddef>
#include <string_view>

#include "attnsmith/attnsmith.h"
#include "attnsmith/spec.hpp"

namespace attnsmith::c_api {

// `name` is that of the argument, e.g. "spec" or "specs[2]". What is checked here is what C++ cannot express;
// the rest is validated where the spec is used. Throws Unsupported for an op that is not supported.
AttentionSpec read_spec(const attnsmith_spec* given, std::string_view name);
PlanSizes read_sizes(const attnsmith_sizes* given);  // null: the default

// The C struct of a normalised spec, in as many bytes as the caller's header has. Throws InvalidRequest, and
// writes nothing, where the rest would not be the defaults.
void write_spec(attnsmith_spec& to, std::size_t size, const AttentionSpec& spec);
attnsmith_sizes to_c(const PlanSizes& sizes);

}  // namespace attnsmith::c_api
