// The version and the features of the library that is loaded. Those of the headers are macros,
// ATTNSMITH_VERSION and others in attnsmith/version.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/export.h"
#include "attnsmith/standard_library.hpp"
#include "attnsmith/version.h"

namespace attnsmith {

// Version of the library that is loaded, such as "0.1.0". The text is valid for ever and ends with a NUL.
[[nodiscard]] ATTNSMITH_API std::string_view version() noexcept;

// All features of the library that is loaded: each operation ("op:attention", ...), each backend of kernels
// ("backend:mma", "backend:wgmma", ...) and each operation on the cache ("cache:stat", ...).
[[nodiscard]] ATTNSMITH_API std::vector<std::string> features();

// True if features() has this name.
[[nodiscard]] ATTNSMITH_API bool has_feature(std::string_view name) noexcept;

}  // namespace attnsmith
