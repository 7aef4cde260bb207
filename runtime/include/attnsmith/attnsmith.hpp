// attnsmith: GPU attention kernels, built at run time. This header is the whole public API. Structs without a
// constructor get new fields in any place: make them with designated initialisers. Enumerations get new
// enumerators: a switch needs a default. docs/cpp.md says what else stays and what may change.
#pragma once

#if __cplusplus < 202002L
#error "attnsmith's C++ API needs C++20: compile with -std=c++20, or use the C ABI (attnsmith/attnsmith.h)"
#else

#include "attnsmith/batch.hpp"
#include "attnsmith/cache.hpp"
#include "attnsmith/coverage.hpp"
#include "attnsmith/error.hpp"
#include "attnsmith/prewarm.hpp"
#include "attnsmith/runtime.hpp"
#include "attnsmith/spec.hpp"
#include "attnsmith/tensor.hpp"
#include "attnsmith/types.hpp"
#include "attnsmith/version.hpp"

#endif
