// Which types' code reads a field of config.json that decides attention.
#pragma once

#include <string_view>

namespace attnsmith::problem {

// Whether code of the type reads the field ("a.b" is a field of a). It is the modeling and configuration
// files of transformers 4.57 and 5.23 that say so. True of types that are not known or that come with code of
// their own, and of fields that decide nothing or that every type reads.
bool reads_field(std::string_view model_type, std::string_view field);

}  // namespace attnsmith::problem
