/* Marks what the shared library exports; everything else is hidden. */
#pragma once

#define ATTNSMITH_API __attribute__((visibility("default")))
