// The mask: which keys a query token sees. A mask is an interval of keys a token, and visible_keys() says
// which. The rest follows from it: what a tile reads, which blocks of keys need no mask, which logits are
// masked, and which splits have a row's keys.
//
//   Both ends of the interval never decrease from one token to the next. So the first and the last token of a
//   tile are enough: what any of its rows sees is from the first one's first key to the last one's end, and
//   what all of them see is from the last one's first key to the first one's end.
//
//   token       keys ->   #: seen
//   first        ######            read by the tile:   first of the first token ... end of the last token
//   ...            ######          seen by all rows:   first of the last token ... end of the first token
//   last             ######
#pragma once

#include "attention/tiles.cuh"
#include "common/fragment.cuh"
#include "common/math.cuh"

namespace attnsmith {

using abi::KeyInterval;

// Whether each row sees all keys of a block. Cursors leave out blocks that no row sees.
enum class Coverage { full, partial };
__device__ inline Coverage full_unless(bool hides_some) { return Coverage(hides_some); }

// Keys that the query `token` sees. A new mask is a change of abi::KeyBounds.
__device__ inline KeyInterval visible_keys(const abi::AttentionArguments& args, const Sequence& s,
                                           int32 token) {
    return args.bounds.seen_from(s.position(token), s.kv_len);
}

// Blocks of `Keys` that have one of the keys.
template <int32 Keys>
__device__ inline KeyInterval blocks_with(const KeyInterval& keys) {
    return {keys.first / Keys, (keys.end + Keys - 1) / Keys};
}

// Blocks of `Keys` that have no other keys.
template <int32 Keys>
__device__ inline KeyInterval blocks_within(const KeyInterval& keys) {
    return {(keys.first + Keys - 1) / Keys, keys.end / Keys};
}

// What is done of a tile at once: some of the units that its blocks of keys are counted in. There may be
// fewer blocks than units, or more.
struct TilePart {
    int32 first = 0, end = 1, units = 1;
    int32 place = -1;  // of the first row among the partial results; negative: the part is the whole tile

    __device__ bool is_whole() const { return place < 0; }
    // How many of so many blocks lie before a unit. Where these are not the units it has to be no more exact
    // than that it grows with the unit, which all who have a part of the tile find alike.
    __device__ int32 blocks_before(int32 unit, int32 blocks) const {
        if (units == blocks) return unit;
        if (unit >= units) return blocks;
        return min(int32(float(unit) * __fdividef(float(blocks), float(units))), blocks);
    }
};

// Splits that have one of the keys: the others' partial results of the row were perhaps never written.
__device__ inline KeyInterval splits_with(const abi::AttentionArguments& args, const KeyInterval& keys) {
    const int32 first = keys.first / args.chunk;
    return {first, keys.is_empty() ? first : (keys.end - 1) / args.chunk + 1};
}

// Keys of a split. The last one ends nowhere.
__device__ inline KeyInterval keys_of_split(const abi::AttentionArguments& args, int32 split) {
    if (args.splits <= 1) return {0, abi::kUnbounded + 1};
    const int32 first = split * args.chunk;
    return {first, int32(min(int64(first) + args.chunk, int64(abi::kUnbounded) + 1))};
}

// The mask of a tile of query rows.
struct TileMask {
    KeyInterval read;         // keys that any row sees
    KeyInterval seen_by_all;  // keys that every row sees: blocks of these alone need no mask

    TileMask() = default;
    // Where the tile's rows see no key.
    static __device__ TileMask nothing() {
        TileMask mask;
        mask.read.first = mask.read.end = mask.seen_by_all.first = mask.seen_by_all.end = 0;
        return mask;
    }
    __device__ explicit TileMask(const TileRows& tile) {
        const abi::AttentionArguments& args = tile.args;
        const int32 last_row = min(tile.first + tile.count, tile.sequence.rows(args)) - 1;
        const KeyInterval first_token = visible_keys(args, tile.sequence, tile.first / args.group);
        const KeyInterval last_token = visible_keys(args, tile.sequence, last_row / args.group);
        read = {first_token.first, last_token.end};
        seen_by_all = {last_token.first, first_token.end};
    }

    // Reads no others than these.
    __device__ void keep(const KeyInterval& keys) {
        read = {max(read.first, keys.first), min(read.end, keys.end)};
    }
    // Reads no others than those of the part, in blocks of `Keys`.
    template <int32 Keys>
    __device__ void keep(const TilePart& part) {
        if (part.is_whole() || read.is_empty()) return;
        const KeyInterval blocks = blocks_with<Keys>(read);
        const int32 count = blocks.end - blocks.first;
        keep(KeyInterval{(blocks.first + part.blocks_before(part.first, count)) * Keys,
                         (blocks.first + part.blocks_before(part.end, count)) * Keys});
    }

    // Of keys first .. end - 1, of which rows see some.
    __device__ Coverage coverage(int32 first, int32 end) const {
        return full_unless(first < seen_by_all.first || end > seen_by_all.end);
    }
};

// The mask of a thread's two rows of an accumulator.
struct FragmentMask {
    int32 first[2], end[2];  // of the keys that each sees

    __device__ void set(const abi::AttentionArguments& args, const Sequence& sequence,
                        const PackedRow (&rows)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const KeyInterval keys = visible_keys(args, sequence, rows[i].token);
            first[i] = keys.first;
            end[i] = rows[i].valid ? keys.end : 0;
        }
    }

    // The logits of keys from `first_key` on. By selection, never by adding: whatever the logit of a key that
    // a row does not see is, it has no influence.
    template <class Scores>
    __device__ void apply(Scores& s, int32 first_key) const {
        constexpr int kWordKeys = 16 * Scores::kPairPitch;  // 32 of them are this thread's
        constexpr int kWords = (Scores::kColumns / 2 * Scores::kPairPitch + kWordKeys - 1) / kWordKeys;
        const int32 origin = first_key + Scores::first_column();
#pragma unroll
        for (int i = 0; i < Scores::kRows; ++i) {
            uint32 seen[kWords];
#pragma unroll
            for (int word = 0; word < kWords; ++word)
                seen[word] = columns_before<Scores>(end[i] - origin - word * kWordKeys) &
                             ~columns_before<Scores>(first[i] - origin - word * kWordKeys);
            s.for_each_pair(i, [&](int column, float& x, float& y) {
                const uint32 word = seen[column / kWordKeys];
                const int bit = column % kWordKeys / Scores::kPairPitch * 2;
                x = word >> bit & 1 ? x : -infinity();
                y = word >> (bit + 1) & 1 ? y : -infinity();
            });
        }
    }

  private:
    // A bit for each of this thread's columns that is one of the first `keys` keys.
    template <class Scores>
    static __device__ uint32 columns_before(int32 keys) {
        keys = max(keys, 0);
        return power_of_two(keys / Scores::kPairPitch * 2 + min(keys % Scores::kPairPitch, 2)) - 1;
    }
};

}  // namespace attnsmith
