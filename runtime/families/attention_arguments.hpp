// From checked tensors to the arguments that every kernel of op attention and of op mla takes.
#pragma once

#include <span>

#include "abi/attention_arguments.h"
#include "families/binding.hpp"
#include "families/launch.hpp"

namespace attnsmith::families {

// `tiles`: those that the kernel has, whose group may be a part of the attention's.
abi::AttentionArguments attention_arguments(const LaunchContext& context, const Binding& binding,
                                            const QueryTiles& tiles);

// Where the struct has the addresses that a launch may replace; likewise one that begins with it.
std::span<const AddressSlot> attention_addresses(const AttentionSpec& spec);

// Sets what a launch in shares reads, with so many query tiles of all KV heads at most. Leaves any other
// launch's arguments alone.
void set_share(const LaunchContext& context, std::int64_t tile_kv, std::int64_t items,
               abi::AttentionArguments& arguments);

}  // namespace attnsmith::families
