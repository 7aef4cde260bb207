// Where the keys of paged KV are.
#pragma once

#include "sequences/sequence.cuh"

namespace attnsmith {

// A key's page, counted in its sequence: key / page_size. A division would take longer than all else that a
// look-up does.
__device__ inline uint32 page_of(const abi::AttentionArguments& args, uint32 key) {
    return abi::divided(key, args.page_size);
}

// A sequence's pages, in its order.
template <class PageId>
__device__ const PageId* pages_of(const abi::AttentionArguments& args, const Sequence& sequence) {
    return static_cast<const PageId*>(args.page_ids) + sequence.page_row;
}

// Whether there is a page of that id.
template <class PageId>
__device__ bool has_page(const abi::AttentionArguments& args, PageId id) {
    return static_cast<uint64>(int64(id)) < static_cast<uint64>(args.pages);
}

}  // namespace attnsmith
