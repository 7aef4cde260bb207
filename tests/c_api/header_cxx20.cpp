// The header of C is C++20 as well, together with the C++ API.
#include <attnsmith/attnsmith.h>
#include <attnsmith/attnsmith.hpp>

#include <string_view>

static_assert(ATTNSMITH_ABI_VERSION == 1);

#if ATTNSMITH_VERSION_MAJOR > 0 || ATTNSMITH_VERSION_MINOR > 0 || ATTNSMITH_VERSION_PATCH > 0
#define ATTNSMITH_TEXT_OF(number) #number
#define ATTNSMITH_DOTTED(major, minor, patch) \
    ATTNSMITH_TEXT_OF(major) "." ATTNSMITH_TEXT_OF(minor) "." ATTNSMITH_TEXT_OF(patch)
static_assert(std::string_view(ATTNSMITH_DOTTED(ATTNSMITH_VERSION_MAJOR, ATTNSMITH_VERSION_MINOR,
                                                ATTNSMITH_VERSION_PATCH)) == ATTNSMITH_VERSION);
#else
#error "the version's numbers are not those of a release"
#endif

// C's functions throw nothing, and a program sees that.
static_assert(noexcept(attnsmith_launch(nullptr, nullptr, nullptr)));
