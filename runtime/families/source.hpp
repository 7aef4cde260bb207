// From a kernel's constants to its source. Only enumerators and integers of a KernelConfig reach it.
#pragma once

#include <string>

#include "families/config.hpp"

namespace attnsmith::families {

struct Source {
    std::string entry;  // the kernel's symbol
    std::string text;   // of one translation unit, which includes its template
};

// The exported variable that holds the kernel's dynamic shared memory in bytes.
inline constexpr const char* kSharedBytesSymbol = "attnsmith_shared_bytes";

Source source_of(const KernelConfig& kernel);

}  // namespace attnsmith::families
