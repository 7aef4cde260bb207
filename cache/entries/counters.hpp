// What happened in a cache directory, over all processes that use it. Counting costs a relaxed atomic
// addition; now and then, and at the end, a process adds what it counted to one of 16 small files in the
// directory. What a killed process counted last, at most a second's or 256 events, is lost.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "cache/files/file_system.hpp"
#include "cache/files/per_process.hpp"

namespace attnsmith::cache {

// The order is that of the file: only to be added to, at the end.
enum class Event : std::uint8_t {
    hit,              // asked for and found on the disk
    miss,             // asked for and not found: a compile or a wait follows
    compile,          // made by this process
    wait,             // made by another process or thread, and waited for
    quarantine,       // a broken entry put aside
    eviction,         // an entry removed to keep the limit
    bytes_read,       // of entries
    bytes_published,  // of entries
    bytes_evicted,    // of entries, allocated
    miss_error,       // a miss that nothing followed, since nothing may be compiled
    remote_hit,       // a miss that was fetched from a remote
    remote_miss,      // a remote had no such entry
    remote_failure,   // a remote could not be asked, or what it gave was not to be taken
    remote_bytes,     // of entries that were fetched
};
inline constexpr std::size_t kEvents = static_cast<std::size_t>(Event::remote_bytes) + 1;

struct CounterTotals {
    std::array<std::uint64_t, kEvents> counts{};
    // When the oldest of the files was begun, in seconds since 1970; 0 where there is none.
    std::int64_t since = 0;

    std::uint64_t operator[](Event event) const { return counts[static_cast<std::size_t>(event)]; }
};

// A file's content; nothing of bytes that are not one, whole.
inline constexpr std::size_t kCounterRecordBytes = 256;
using CounterRecord = std::array<std::byte, kCounterRecordBytes>;
CounterRecord encode_counters(const CounterTotals& totals);
std::optional<CounterTotals> decode_counters(std::span<const std::byte> bytes);

// What one process counts in one directory. Thread-safe; a child made by fork begins at zero.
class Counters {
  public:
    Counters(FileSystem& files, std::string root);

    void add(Event event, std::uint64_t count);
    // Whether it is time for flush(): so that those who count look at a clock only now and then.
    bool is_due() const;
    // Best effort: what cannot be written is kept for the next time. Makes nothing where there is no cache
    // directory.
    void flush(std::uint32_t directory_mode);

  private:
    struct Pending {
        std::array<std::atomic<std::uint64_t>, kEvents> counts{};
        std::atomic<std::uint64_t> events{0};
        std::atomic<std::int64_t> last_flush{now()};
    };

    static std::int64_t now();  // of the steady clock, in nanoseconds

    bool write(unsigned slot, const CounterTotals& pending, std::uint32_t directory_mode);

    FileSystem& files_;
    const std::string root_;
    PerProcess<Pending> pending_;
};

// The sum of all files.
CounterTotals read_counters(FileSystem& files, const std::string& root);

}  // namespace attnsmith::cache
