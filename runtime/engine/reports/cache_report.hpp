// The cache's entries as the kernels that they are, and what is wrong with an operation's outcome.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/cache.hpp"
#include "cache/store/store.hpp"
#include "engine/environment.hpp"

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
// By the key's digits, or as many of the first ones as no other entry's key has. Throws InvalidRequest for
// what cannot begin a key, CacheError where no entry has it, or several keys begin so.
cache::Digest find_key(std::string_view digits, const KernelList& stored);
// The first of what could not be read, and how many more there are. REQUIRES: not empty.
std::string unreadable_text(std::span<const cache::Status> unreadable);
std::string unreadable_text(std::span<const CacheUnreadable> unreadable);
// The SM that the entry's kernel is for; 0 where its metadata does not say it.
int sm_of(const cache::ListedEntry& entry);

// Throws CacheError with the remedy where the settings have no directory, InvalidRequest naming what they are
// named by where the first is something else, or another is neither a directory nor a file (a bundle).
void require_directories(const Settings& settings, std::string_view remedy);

// Whether there is nothing of this name, or a link to nothing.
bool is_missing(const std::string& path);

std::int64_t age_seconds(cache::FileTime time);
std::string utc_text(cache::FileTime time);  // "2026-01-31T23:59:59Z"

// [{"path", "reason"}]
nlohmann::ordered_json unreadable_json(std::span<const cache::Status> unreadable);
// Throw CacheError where something could not be deleted.
void require_cleared(const cache::ClearReport& report);
// Also where the key's entries are all in read-only layers.
void require_removed(const cache::RemoveReport& report);
void require_collected(const cache::EvictionReport& report);

}  // namespace attnsmith::engine
