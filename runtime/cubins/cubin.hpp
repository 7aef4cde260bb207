// A kernel's machine code, and what is known of it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cache/digest/digest.hpp"
#include "cache/entries/entry.hpp"
#include "planner/plan_json.hpp"

namespace attnsmith::engine {

struct Cubin {
    cache::Digest key;
    cache::Version toolchain;
    std::vector<std::byte> bytes;
    std::string entry;
    planner::CompiledResources resources;
    std::string log;  // the compiler's
};

// The cache state of a plan's kernel, for its JSON. Null: the cache does not have it.
planner::CacheState cache_state(const cache::Digest& key, const Cubin* cubin);

}  // namespace attnsmith::engine
