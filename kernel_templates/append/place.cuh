// Where a token goes: from its slot, or from its sequence's lengths and pages. All of it is read on the
// device and checked there: no value makes a kernel touch memory outside of the tensors.
#pragma once

#include "abi/append_arguments.h"
#include "sequences/pages.cuh"

namespace attnsmith {

struct TokenPlace {
    bool is_written = false;
    int64 outer = 0;     // page, or sequence of a dense cache
    int32 offset = 0;    // in it
    int64 position = 0;  // in the token's sequence; of slots unknown
};

// Where a token lies in the inputs: in a sequence's row of them, or in the one row that they are.
struct InSequence {
    int32 sequence, token;

    __device__ InSequence(const abi::AppendArguments& args, int32 of_all)
        : sequence(args.q_len != 0 ? of_all / args.q_len : 0),
          token(args.q_len != 0 ? of_all - sequence * args.q_len : of_all) {}
};

template <class Index>
__device__ int64 token_value(const void* values, int32 token, bool are_64) {
    return are_64 ? static_cast<const int64*>(values)[token]
                  : int64(static_cast<const Index*>(values)[token]);
}

// The last sequence that begins at the token or before it, by a whole warp: 32 ways at a time. Below 0 where
// none does. What it is for offsets that do not ascend is checked by who asks.
template <class Index>
__device__ int32 sequence_of(const abi::AttentionArguments& batch, int32 token) {
    int32 low = 0, count = batch.batch;
    const int32 lane = threadIdx.x % 32;
    while (count > 0) {
        const int32 step = int32((uint32(count) + 31) / 32);
        const int32 at = lane * step;
        const bool begins = at < count && index_at<Index>(batch.q_indptr, low + at) <= token;
        const uint32 all = __ballot_sync(0xffffffffu, begins);
        if (all == 0) return low - 1;
        const int32 last = 31 - __clz(int(all));
        low += last * step;
        if (step == 1) return low;
        // The one at `low` begins early enough: what is left to ask stands behind it.
        const int32 behind = count - last * step - 1;
        count = step - 1 < behind ? step - 1 : behind;
        if (count == 0) return low;
        ++low;
    }
    return low - 1;
}

template <class Config>
__device__ TokenPlace place_by_slot(const abi::AppendArguments& args, int32 token, uint32& status) {
    TokenPlace place{.is_written = true};
    if (!args.slot_mapping) return place;  // q alone
    const int64 slot = token_value<typename Config::Index>(args.slot_mapping, token, args.slots_are_64);
    if (slot < 0) return {};
    if (!args.has_cache) return place;
    if (slot >= args.slots) {
        status |= abi::kStatusSlotOutOfRange;
        return {};
    }
    // Few caches have so many slots that 31 bits do not number them.
    place.outer =
        slot >> 31 == 0 ? int64(uint32(slot) / args.slots_of_each) : slot / args.slots_of_each.value;
    place.offset = int32(slot - place.outer * args.slots_of_each.value);
    return place;
}

// A sequence whose lengths are beyond their bounds is not written: its tokens' places are not known.
template <class Config>
__device__ TokenPlace place_by_table(const abi::AppendArguments& args, int32 token, uint32& status) {
    using Index = typename Config::Index;
    const int32 b = args.q_len != 0 ? token / args.q_len : sequence_of<Index>(args.batch, token);
    if (b < 0) return {};
    uint32 found = 0;
    const Sequence sequence = load_sequence<Config>(args.batch, b, found);
    status |= found;
    if (found != 0) return {};
    const int64 in_sequence = args.q_len != 0 ? token - b * args.q_len : token - sequence.q_first;
    if (in_sequence < 0 || in_sequence >= sequence.q_len) return {};  // of no sequence
    const int64 position = sequence.kv_len - sequence.q_len + in_sequence;
    if (position < 0) {
        status |= abi::kStatusSlotOutOfRange;
        return {};
    }
    TokenPlace place{.is_written = true, .outer = b, .offset = int32(position), .position = position};
    if constexpr (Config::paged) {
        if (!args.has_cache) return place;
        const int32 page = int32(page_of(args.batch, uint32(position)));
        const int64 id = pages_of<Index>(args.batch, sequence)[page];
        if (!has_page(args.batch, id)) {
            status |= abi::kStatusPageOutOfRange;
            return {};
        }
        place.outer = id;
        place.offset = int32(position) - page * args.batch.page_size;
    }
    return place;
}

// By a whole warp, with one token. `position` becomes what the token is rotated by.
template <class Config>
__device__ TokenPlace place_of(const abi::AppendArguments& args, int32 token, uint32& status) {
    int64 given = 0;  // on its way while the slot is, though not every token needs it
    if constexpr (Config::rope != 0) {
        if (args.positions)
            given = token_value<typename Config::Index>(args.positions, token, args.positions_are_64);
    }
    TokenPlace place = Config::by_table ? place_by_table<Config>(args, token, status)
                                        : place_by_slot<Config>(args, token, status);
    if constexpr (Config::rope != 0) {
        if (!place.is_written) return place;
        if (args.positions) place.position = given;
        if (uint64(place.position) >= uint64(args.rope_positions)) {
            status |= abi::kStatusPositionOutOfRange;
            return {};
        }
    }
    return place;
}

}  // namespace attnsmith
