// The cache's entries as the kernels that they are.
#pragma once

#include <string>
#include <vector>

#include "cache/store.hpp"
#include "engine/environment.hpp"

namespace attnsmith::cli {

// What an entry's metadata says of its kernel; empty and 0 where it is not readable.
struct KernelEntry {
    cache::ListedEntry entry;
    std::string name;
    std::string target;
    int sm = 0;
};

cache::Options store_options(const engine::Settings& settings);
std::vector<KernelEntry> list_kernels(const cache::Store& store);

}  // namespace attnsmith::cli
