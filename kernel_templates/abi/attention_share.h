// What the threads of a CTA tell each other of its share of a launch's work, in shared memory
// (attention/shares.cuh).
#pragma once

#include "abi/integers.h"

namespace attnsmith::abi {

inline constexpr int32 kMostWarps = 16;  // of a CTA that takes shares
inline constexpr int32 kMostJoins = 3;   // of a CTA, warpgroups with rows of their own to join

// At a unit of a query tile, counted from the sequence's last one, of a KV head.
struct SharePosition {
    int32 left;                 // units of the share from there on
    int32 kv_head, tile, unit;  // `unit`: with the places of the tile's start in front
};

struct ShareState {
    int32 warp_tiles[kMostWarps];    // of the sequences that each warp has looked at, of all KV heads
    int32 warp_units[kMostWarps];    // of these tiles
    int32 warp_longest[kMostWarps];  // units of the longest tile of these
    SharePosition at[2];             // by turns: where the CTA is, and what comes next
    // The sequence at hand: what is known of its lengths, its query tiles, and the units of each.
    int64 q_first, kv_first, page_row;
    int32 batch, q_len, kv_len;
    int32 tiles, units;
    int32 share;               // units of every share
    int32 start_units;         // that the start of a tile counts for
    int32 slices[kMostJoins];  // of the rows that they join, the one that they are at
};

// How the rows are joined of a tile whose keys several CTAs have: an item, so many columns of a row, by a
// thread.
struct Joining {
    int32 columns;  // of an item
    int32 at_once;  // parts of it that are under way together: a round, in which it waits for L2
};
inline constexpr Joining kPartsJoining{8, 8};    // attention/join_parts.cuh
inline constexpr Joining kPiecesJoining{4, 16};  // attention/join_pieces.cuh

// All threads have an item each in a turn; CTAs take slices of one turn, two or four. To take one is to wait
// for L2 as well, so a slice is of four rounds or more.
ATTNSMITH_HOST_DEVICE constexpr int32 join_slice_log2(int32 rounds) {
    return rounds >= 4 ? 0 : rounds >= 2 ? 1 : 2;
}
// Where a tile has no more turns, one CTA joins all.
inline constexpr int32 kTurnsOfOne = 2;

// The room of a tile's sequence, its rows and its part, in shared memory.
inline constexpr int32 kTileWorkBytes = 64;

// Where it is, behind what ends there.
ATTNSMITH_HOST_DEVICE constexpr int32 share_state(int32 end) { return (end + 15) / 16 * 16; }

}  // namespace attnsmith::abi
