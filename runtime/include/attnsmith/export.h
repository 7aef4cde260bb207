/* How declarations of attnsmith are marked, in C and in C++. The marks are attributes of GCC and Clang. */
#pragma once

/* Marks what the shared library exports; everything else is hidden. */
#define ATTNSMITH_API __attribute__((visibility("default")))

/* Marks an old name, whose use warns with this text. An old name lives for one minor version. A program that
 * defines ATTNSMITH_NO_DEPRECATED before the first header of attnsmith sees no old names of the C ABI. */
#define ATTNSMITH_DEPRECATED(text) __attribute__((deprecated(text)))

/* Marks a function whose result must be looked at. It stands first in a declaration. */
#if (defined(__cplusplus) && __cplusplus >= 201703L) || \
    (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
#define ATTNSMITH_NODISCARD [[nodiscard]]
#else
#define ATTNSMITH_NODISCARD __attribute__((warn_unused_result))
#endif

/* Marks a function of C that no C++ exception leaves. It stands last in a declaration. */
#ifdef __cplusplus
#define ATTNSMITH_NOEXCEPT noexcept
#else
#define ATTNSMITH_NOEXCEPT
#endif
