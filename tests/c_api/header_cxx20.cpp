// The header is C++20 as well, beside the C++ API.
#include <attnsmith/attnsmith.h>
#include <attnsmith/attnsmith.hpp>

static_assert(ATTNSMITH_ABI_VERSION == 2);
