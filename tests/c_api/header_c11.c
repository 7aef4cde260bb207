/* The header is C11, and needs nothing before it. It has the version for the preprocessor. */
#include <attnsmith/attnsmith.h>

#if ATTNSMITH_VERSION_NUMBER < 100 || ATTNSMITH_VERSION_NUMBER != ATTNSMITH_VERSION_MAJOR * 10000 +   \
                                                                      ATTNSMITH_VERSION_MINOR * 100 + \
                                                                      ATTNSMITH_VERSION_PATCH
#error "the version's numbers are not those of a release"
#endif
static const char header_version[] = ATTNSMITH_VERSION;

int header_c11(void);
int header_c11(void) { return ATTNSMITH_ABI_VERSION + (header_version[0] == 0); }
