#include "cache/entries/counters.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "cache/digest/byte_order.hpp"
#include "cache/digest/digest.hpp"
#include "cache/entries/layout.hpp"
#include "cache/files/lock.hpp"

namespace attnsmith::cache {
namespace {

constexpr std::array<std::uint8_t, 8> kCountersMagic = {0x89, 'A', 'S', 'C', 'C', 0x0d, 0x0a, 0x1a};
constexpr std::uint64_t kFormat = 1;
constexpr std::size_t kCountersFormatAt = 8;
constexpr std::size_t kSinceAt = 16;
constexpr std::size_t kCountsAt = 24;
constexpr std::size_t kDigestAt = kCounterRecordBytes - Digest::kBytes;
static_assert(kCountsAt + 8 * kEvents <= kDigestAt);

constexpr unsigned kSlots = 16;
constexpr unsigned kMostSlotsTried = 4;
constexpr std::uint64_t kMostPendingEvents = 256;
constexpr auto kLongestPending = std::chrono::nanoseconds(std::chrono::seconds(1)).count();

std::int64_t seconds_since_1970() {
    const auto since = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::seconds>(since).count();
}

std::optional<CounterTotals> read_record(File& file) {
    CounterRecord record;
    const Result<std::size_t> size = read_fully(file, record);
    if (!size || *size != record.size()) return std::nullopt;
    return decode_counters(record);
}

}  // namespace

CounterRecord encode_counters(const CounterTotals& totals) {
    CounterRecord record{};
    for (std::size_t i = 0; i < kCountersMagic.size(); ++i)
        record[i] = static_cast<std::byte>(kCountersMagic[i]);
    put_little_endian(record.data() + kCountersFormatAt, kFormat);
    put_little_endian(record.data() + kSinceAt, static_cast<std::uint64_t>(totals.since));
    for (std::size_t i = 0; i < kEvents; ++i)
        put_little_endian(record.data() + kCountsAt + 8 * i, totals.counts[i]);
    put_digest(record.data() + kDigestAt, digest_of(std::span<const std::byte>(record).first(kDigestAt)));
    return record;
}

std::optional<CounterTotals> decode_counters(std::span<const std::byte> bytes) {
    if (bytes.size() != kCounterRecordBytes) return std::nullopt;
    CounterTotals totals;
    totals.since = static_cast<std::int64_t>(get_little_endian<std::uint64_t>(bytes.data() + kSinceAt));
    for (std::size_t i = 0; i < kEvents; ++i)
        totals.counts[i] = get_little_endian<std::uint64_t>(bytes.data() + kCountsAt + 8 * i);
    // One encoding of each: this checks magic, format, zeros and checksum in one.
    const CounterRecord again = encode_counters(totals);
    if (!std::equal(bytes.begin(), bytes.end(), again.begin())) return std::nullopt;
    return totals;
}

Counters::Counters(FileSystem& files, std::string root) : files_(files), root_(std::move(root)) {}

std::int64_t Counters::now() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Counters::add(Event event, std::uint64_t count) {
    Pending& pending = pending_.get();
    pending.counts[static_cast<std::size_t>(event)].fetch_add(count, std::memory_order_relaxed);
    pending.events.fetch_add(1, std::memory_order_relaxed);
}

bool Counters::is_due() const {
    const Pending& pending = pending_.get();
    const std::uint64_t events = pending.events.load(std::memory_order_relaxed);
    if (events == 0) return false;
    return events >= kMostPendingEvents ||
           now() - pending.last_flush.load(std::memory_order_relaxed) >= kLongestPending;
}

void Counters::flush(std::uint32_t directory_mode) {
    Pending& pending = pending_.get();
    pending.last_flush = now();  // first, so that other threads do not come as well
    if (root_.empty() || pending.events.exchange(0) == 0) return;
    CounterTotals taken;
    for (std::size_t i = 0; i < kEvents; ++i) taken.counts[i] = pending.counts[i].exchange(0);

    const auto first = static_cast<unsigned>(::getpid()) % kSlots;
    for (unsigned i = 0; i < kMostSlotsTried; ++i) {
        if (write((first + i) % kSlots, taken, directory_mode)) return;
    }
    for (std::size_t i = 0; i < kEvents; ++i) pending.counts[i] += taken.counts[i];
    pending.events += 1;
}

// False where the file cannot be had or written.
bool Counters::write(unsigned slot, const CounterTotals& pending, std::uint32_t directory_mode) {
    const Path path{root_, layout::counters_path(slot)};
    // Whoever holds a file that clear() removed meanwhile holds no lock: what is written there is lost.
    const Lock lock = acquire_lock(files_, path, directory_mode & kFileBits, std::chrono::nanoseconds::zero(),
                                   maker_of_parent(files_, path, directory_mode));
    if (!lock.held()) return false;
    CounterTotals totals = read_record(lock.file()).value_or(CounterTotals{.counts = {}, .since = 0});
    if (totals.since == 0) totals.since = seconds_since_1970();
    for (std::size_t i = 0; i < kEvents; ++i) totals.counts[i] += pending.counts[i];
    const CounterRecord record = encode_counters(totals);
    const Result<std::size_t> written = lock.file().write_at(record, 0);
    return written.ok() && *written == record.size();
}

CounterTotals read_counters(FileSystem& files, const std::string& root) {
    CounterTotals sum;
    if (root.empty()) return sum;
    for (unsigned slot = 0; slot < kSlots; ++slot) {
        const Result<std::unique_ptr<File>> file =
            files.open_for_reading({root, layout::counters_path(slot)});
        if (!file) continue;
        const std::optional<CounterTotals> totals = read_record(**file);
        if (!totals) continue;
        sum.since = sum.since == 0 ? totals->since : std::min(sum.since, totals->since);
        for (std::size_t i = 0; i < kEvents; ++i) sum.counts[i] += totals->counts[i];
    }
    return sum;
}

}  // namespace attnsmith::cache
