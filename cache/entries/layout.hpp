// The names of everything in a cache directory, as FORMAT.md lists them. Names are built from digests,
// versions and integers alone, and a file whose name does not parse is not ours.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cache/digest/digest.hpp"
#include "cache/entries/entry.hpp"

namespace attnsmith::cache::layout {

inline constexpr std::string_view kStagingDirectory = "staging";
inline constexpr std::string_view kQuarantineDirectory = "quarantine";
inline constexpr std::string_view kLocksDirectory = "locks";
inline constexpr std::string_view kEvictorLock = "locks/evictor.lock";
inline constexpr std::string_view kCountersDirectory = "counters";

struct EntryName {
    Digest key;
    Version version;
};

std::string shard_name(const Digest& key);
std::string entry_name(const EntryName& name);
std::string staging_name(const Digest& key, std::uint64_t token);
std::string quarantine_name(const EntryName& name, std::uint64_t token);
std::string lock_name(const Digest& key);

// Relative to the cache directory.
std::string entry_path(const EntryName& name);
std::string lock_path(const Digest& key);
std::string counters_path(unsigned slot);
std::string in_directory(std::string_view directory, std::string_view file_name);

bool is_shard_name(std::string_view name);
// The name of an entry in the shard where it belongs.
std::optional<EntryName> parse_entry_name(std::string_view shard, std::string_view file_name);
bool is_staging_name(std::string_view file_name);
bool is_quarantine_name(std::string_view file_name);
bool is_lock_name(std::string_view file_name);
bool is_counters_name(std::string_view file_name);

}  // namespace attnsmith::cache::layout
