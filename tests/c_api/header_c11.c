/* The header is C11, and needs nothing before it. */
#include <attnsmith/attnsmith.h>

int header_c11(void);
int header_c11(void) { return ATTNSMITH_ABI_VERSION; }
