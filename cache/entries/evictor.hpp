// What keeps a cache directory small: least recently used entries go first, and with them what dead processes
// left behind. Internal to cache/, as Store::gc() and after Store::publish().
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "cache/files/file_system.hpp"
#include "cache/files/status.hpp"

namespace attnsmith::cache {

// An entry's time of modification is its stamp: when it was published or, to the hour, last read. Set by us
// and never by the system, as atime would be.
inline constexpr auto kStampIsOldAfter = std::chrono::hours(1);
// Nothing with a younger stamp is evicted, so nothing that was published or read within the hour before.
inline constexpr auto kEvictionGrace = 2 * kStampIsOldAfter;

struct EvictionLimits {
    std::optional<std::uint64_t> start_above = {};  // allocated bytes of all entries; absent: no limit
    std::uint64_t stop_at = 0;
    std::chrono::nanoseconds grace = kEvictionGrace;  // 0: none
    std::chrono::nanoseconds lock_wait = {};          // for the evictor at work
    std::uint32_t directory_mode = 0700;              // of the lock's directory, where it is missing
};

struct KeptEntries {
    std::uint64_t entries = 0;
    std::uint64_t bytes = 0;  // allocated
};

struct EvictionReport {
    bool busy = false;  // another evictor was at work all the time; nothing was done
    std::uint64_t entries = 0;
    std::uint64_t staging = 0;
    std::uint64_t quarantined = 0;
    std::uint64_t locks = 0;
    std::uint64_t entry_bytes = 0;       // allocated, freed by the entries alone
    std::uint64_t bytes = 0;             // allocated, freed by all of these
    std::optional<std::uint64_t> limit;  // of the allocated bytes; more is kept where it was used just now
    std::optional<KeptEntries> kept;     // in the directory afterwards; absent where that is not known
    Status status;                       // the first entry that could not be removed, or shard not read
    Status leftover_status;              // the first of the rest that could not be removed
};

// One evictor at a time; on a file system without locks several agree on what goes, for they see the same
// stamps.
EvictionReport evict(FileSystem& files, const std::string& root, const EvictionLimits& limits);

// What the whole directory has, by the size of one of its 256 shards, whose keys are as good as random.
std::uint64_t estimate_allocated_bytes(FileSystem& files, const Path& shard);

// Whether an entry of this stamp is to get a new one. (Of the future, too: a clock was wrong.)
bool is_old_stamp(FileTime stamp, FileTime now);

}  // namespace attnsmith::cache
