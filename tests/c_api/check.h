/* CHECK(condition): says where and why, and ends the program. */
#ifndef ATTNSMITH_TESTS_C_API_CHECK_H
#define ATTNSMITH_TESTS_C_API_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                            \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

#endif
