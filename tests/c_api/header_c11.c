/* The header is C11, and needs nothing before it. */
#include <attnsmith/attnsmith.h>

/* So is that of the version, for the preprocessor. */
#include <attnsmith/version.hpp>
#if ATTNSMITH_VERSION_MAJOR * 10000 + ATTNSMITH_VERSION_MINOR * 100 + ATTNSMITH_VERSION_PATCH < 100
#error "the version's numbers are not those of a release"
#endif
static const char header_version[] = ATTNSMITH_VERSION;

int header_c11(void);
int header_c11(void) { return ATTNSMITH_ABI_VERSION + (header_version[0] == 0); }
