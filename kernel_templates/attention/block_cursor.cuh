// Which blocks of keys a tile of query rows takes, in which order, and how much of each its rows see. A
// cursor stands between the mask and the roles that load, dequantize and multiply blocks.
//
//   The blocks are those of an interval of keys (attention/mask.cuh), neighbours in one order. Loaders with
//   cp.async rely on that: they look keys up some blocks ahead, and rings find a block's place by its number.
#pragma once

#include "attention/mask.cuh"

namespace attnsmith {

// Ascending, for kernels whose threads all load and multiply, and look up and load some blocks ahead:
// positions are the blocks' numbers, and places in rings follow from these.
template <int32 Keys>
struct AscendingBlocks {
    int32 first, end;

    // Of these keys, maybe none.
    __device__ explicit AscendingBlocks(const KeyInterval& keys) {
        const KeyInterval blocks = blocks_with<Keys>(keys);
        first = blocks.first;
        end = keys.is_empty() ? blocks.first : blocks.end;
    }
    __device__ bool has(int32 block) const { return block < end; }
    __device__ bool is_empty() const { return first == end; }
    static __device__ int32 next(int32 block) { return block + 1; }
    static __device__ int32 ahead(int32 block, int32 count) { return block + count; }
    static __device__ int32 first_key(int32 block) { return block * Keys; }
    static __device__ int32 end_key(int32 block) { return (block + 1) * Keys; }
    static __device__ Coverage coverage(int32 block, const TileMask& mask) {
        return mask.coverage(first_key(block), end_key(block));
    }
};

// What a warpgroup does of a tile's blocks.
struct WarpgroupBlocks {
    KeyInterval attended;  // those that its rows see, maybe none
    KeyInterval full;      // those that all its rows see

    __device__ bool has_any() const { return attended.first < attended.end; }
    __device__ Coverage coverage(int32 block) const {
        return full_unless(block < full.first || block >= full.end);
    }
};

// The order in which persistent kernels take blocks: from the last, so that a causal tile's masked ones come
// first; with absolute cuts from the first, as what is found is folded.
template <class Config>
inline constexpr int32 kBlockStep = Config::absolute_cuts ? 1 : -1;

template <class Config>
__device__ int32 first_block(const KeyInterval& blocks) {
    return Config::absolute_cuts ? blocks.first : blocks.end - 1;
}
template <class Config>
__device__ int32 last_block(const KeyInterval& blocks) {
    return Config::absolute_cuts ? blocks.end - 1 : blocks.first;
}

// Through all blocks of a tile, for the roles that bring them.
template <class Config>
struct BlockCursor {
    int32 block;
    int32 left;  // with this one

    __device__ explicit BlockCursor(const KeyInterval& blocks)
        : block(first_block<Config>(blocks)), left(blocks.end - blocks.first) {}
    __device__ bool has_block() const { return left > 0; }
    __device__ bool is_last() const { return left == 1; }
    __device__ int32 next() const { return block + kBlockStep<Config>; }
    __device__ void advance() {
        block = next();
        --left;
    }
};

// Through those of a tile's blocks that a warpgroup attends to. REQUIRES: there is one.
template <class Config>
struct AttendedBlocks {
    const WarpgroupBlocks own;  // read once, not in each block
    const int32 first, last;
    int32 block;

    __device__ explicit AttendedBlocks(const WarpgroupBlocks& blocks)
        : own(blocks),
          first(first_block<Config>(own.attended)),
          last(last_block<Config>(own.attended)),
          block(first) {}
    __device__ bool is_first() const { return block == first; }
    __device__ bool is_last() const { return block == last; }
    __device__ void advance() { block += kBlockStep<Config>; }
    __device__ Coverage coverage() const { return own.coverage(block); }
};

// Blocks of the tile that come before those that a warpgroup attends to, and behind them.
template <class Config>
__device__ int32 blocks_before(const KeyInterval& of_tile, const KeyInterval& attended) {
    return Config::absolute_cuts ? attended.first - of_tile.first : of_tile.end - attended.end;
}
template <class Config>
__device__ int32 blocks_behind(const KeyInterval& of_tile, const KeyInterval& attended) {
    return Config::absolute_cuts ? of_tile.end - attended.end : attended.first - of_tile.first;
}

}  // namespace attnsmith
