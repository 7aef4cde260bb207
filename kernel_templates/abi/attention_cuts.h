// Where the keys of a query row are cut, for consistency "bitwise": what is found between two cuts is folded,
// one after the other, into what was found before them, and CTAs divide keys at cuts alone. Where they are is
// a function of the keys that the row sees, so that its bits are the same whoever does which of them.
#pragma once

#include "abi/integers.h"

namespace attnsmith::abi {

inline constexpr int32 kLeastCut = 256;    // keys from one cut to the next, at least
inline constexpr int32 kMostCuts = 64;     // pieces that a row's keys are cut into, at most
inline constexpr int32 kSoftmaxKeys = 32;  // that the running softmax takes at a time

// Keys from one cut to the next, of a row that sees keys up to `end`: a power of two.
ATTNSMITH_HOST_DEVICE constexpr int32 cut_length(int32 end) {
    int32 length = kLeastCut;
    while (int64(length) * kMostCuts < end) length *= 2;
    return length;
}

// Pieces of a row that sees keys up to `end`, at most, and so of rows that see fewer.
ATTNSMITH_HOST_DEVICE constexpr int32 most_pieces(int32 end) {
    const int32 pieces = (end + kLeastCut - 1) / kLeastCut;
    return pieces < kMostCuts ? pieces : kMostCuts;
}

// The room of a list of a tile's pieces, in shared memory.
inline constexpr int32 kPieceListBytes = (kMostCuts + 4) * int32(sizeof(int32));

}  // namespace attnsmith::abi
