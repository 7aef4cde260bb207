// The arguments and the shared memory of the kernel that selects the largest scores of rows. Strides are in
// elements.
#pragma once

#include "abi/integers.h"

namespace attnsmith::abi {

struct TopKArguments {
    const float* scores;     // [row][column], the last stride 1
    const void* row_starts;  // [row]; null: 0
    const void* row_ends;    // [row]; null: all columns
    int32* indices;          // [row][k], the last stride 1
    uint32* status;
    int64 scores_row_stride, indices_row_stride;
    int32 columns, k;
};

inline constexpr int32 kTopKThreads = 256;
inline constexpr int32 kTopKDigitBits = 8;

// Of a CTA, which has a row.
struct TopKShared {
    int32 histogram[1 << kTopKDigitBits];  // scores by a digit of theirs
    int32 digit, left;                     // the digit of the k-th largest score; how many with it to select
    int32 first, end;                      // columns of the row
    int32 above[kTopKThreads / 32], equal[kTopKThreads / 32];  // of each warp's scores
};

static_assert(kTopKThreads == 1 << kTopKDigitBits);

}  // namespace attnsmith::abi
