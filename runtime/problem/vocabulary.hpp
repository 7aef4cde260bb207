// The words of requests and of runtimes: one list for each enumeration, for JSON, the command line, the C
// ABI, environment variables and every message. What comes out of the library is always the canonical word.
#pragma once

#include "attnsmith/runtime.hpp"
#include "attnsmith/types.hpp"
#include "problem/words.hpp"

namespace attnsmith::problem {

extern const WordList<Op> kOpWords;             // each op has its word, and their registry the list
extern const WordList<DType> kDTypeWords;       // every dtype of a tensor
extern const WordList<DType> kFloatDTypeWords;  // those that q, k and v may have
extern const WordList<DType> kOutputDTypeWords;
extern const WordList<DType> kKvDTypeWords;
extern const WordList<DType> kIndexDTypeWords;
extern const WordList<Mask> kMaskWords;
extern const WordList<KvStorage> kKvStorageWords;
extern const WordList<PageOrder> kPageOrderWords;
extern const WordList<Precision> kPrecisionWords;
extern const WordList<Consistency> kConsistencyWords;
extern const WordList<KvScale> kKvScaleWords;
extern const WordList<Slots> kSlotsWords;
extern const WordList<Rope> kRopeWords;
extern const WordList<RopeTable> kRopeTableWords;

extern const WordList<LogLevel> kLogLevelWords;
extern const WordList<CacheTrust> kCacheTrustWords;
extern const WordList<Toolchain> kToolchainWords;
extern const WordList<OnMiss> kOnMissWords;

extern const WordList<WarningKind> kWarningKindWords;
extern const WordList<ErrorKind> kErrorKindWords;

}  // namespace attnsmith::problem
