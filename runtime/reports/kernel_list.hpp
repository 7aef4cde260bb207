// The cache's entries as the kernels that they are.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/store/store.hpp"

namespace attnsmith::engine {

// What an entry's metadata says of its kernel; empty and 0 where it is not readable.
struct KernelEntry {
    cache::ListedEntry entry;
    std::string name;
    std::string target;
    int sm = 0;
};

// What lies in the cache, and what of it could not be read: there may be any kernel there.
struct KernelList {
    std::vector<KernelEntry> kernels;
    std::vector<cache::Status> unreadable;
};

KernelList list_kernels(const cache::Store& store);
// The same of entries that are listed already.
std::vector<KernelEntry> kernels_of(std::vector<cache::ListedEntry> listed);
// By the key's digits, or as many of the first ones as no other entry's key has. Throws InvalidRequest for
// what cannot begin a key, CacheError where no entry has it, or several keys begin so.
cache::Digest find_key(std::string_view digits, const KernelList& stored);
// The SM that the entry's kernel is for; 0 where its metadata does not say it.
int sm_of(const cache::ListedEntry& entry);

}  // namespace attnsmith::engine
