/* What the shared library exports. */
#pragma once

/* Marks what the shared library exports; everything else is hidden. */
#define ATTNSMITH_API __attribute__((visibility("default")))
