// How an entry comes into the store's directory, and how the directory is kept to its limit.
#include <fmt/format.h>

#include <cerrno>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "cache/entries/entry_file.hpp"
#include "cache/entries/layout.hpp"
#include "cache/files/staged_file.hpp"
#include "cache/files/unique_token.hpp"
#include "cache/store/store.hpp"

namespace attnsmith::cache {
namespace {

bool is_json_object(const std::string& text) {
    const std::size_t start = text.find_first_not_of(" \t\r\n");
    return start != std::string::npos && text[start] == '{' && nlohmann::json::accept(text);
}

Status check_publishable(const Version& version, const Entry& entry) {
    if (version.major < 0 || version.minor < 0 || version.build < 0) {
        return Status::fatal_error(EINVAL, {}, fmt::format("{} is not a version", version.to_string()));
    }
    if (kEntryOverheadBytes + entry.metadata.size() + entry.payload.size() > kMaxEntryBytes) {
        return Status::fatal_error(EFBIG, {}, fmt::format("an entry may have {} bytes", kMaxEntryBytes));
    }
    if (!is_json_object(entry.metadata)) {
        return Status::fatal_error(EINVAL, {}, "the metadata is not a JSON object");
    }
    return Status::success();
}

}  // namespace

Status Store::publish(const Digest& key, const Version& version, const Entry& entry) const noexcept {
    try {
        if (Status status = check_publishable(version, entry); !status.ok()) return status;
        if (options_.directory.empty()) return cannot_write(no_cache_directory());
        Status status = check_trust(kWritableLayer);
        if (!status.ok()) return status;
        const std::vector<std::byte> bytes = encode_entry(key, version, entry);
        status = publish_bytes(key, version, bytes);
        if (!status.ok()) return cannot_write(std::move(status));
        note_published(key, bytes.size());
        return status;
    } catch (const std::bad_alloc&) {
        return {StatusClass::recoverable, ENOMEM, {}, "out of memory"};  // short: allocates nothing
    } catch (...) {
        return {StatusClass::fatal, EINVAL, {}, "warn threw"};
    }
}

Status Store::publish_bytes(const Digest& key, const Version& version,
                            std::span<const std::byte> bytes) const {
    Status status = publish_once(key, version, bytes);
    // Somebody took the staging file or a directory for a dead process's, or cleared them all.
    return is_absence(status) ? publish_once(key, version, bytes) : status;
}

Status Store::publish_once(const Digest& key, const Version& version,
                           std::span<const std::byte> bytes) const {
    Result<StagedFile> staged = create_staged_file(key);
    if (!staged) return staged.status();
    if (Status written = staged->append(bytes); !written.ok()) return written;
    if (Status finished = staged->finish(); !finished.ok()) return finished;

    const Result<bool> made_shard = move_into_shard(*staged, {key, version});
    if (!made_shard) return made_shard.status();
    if (*made_shard) {
        if (Status synced = files_.sync_directory({options_.directory, {}}); !synced.ok()) return synced;
    }
    return files_.sync_directory({options_.directory, layout::shard_name(key)});
}

void Store::note_published(const Digest& key, std::size_t bytes) const {
    count(Event::bytes_published, bytes);
    keep_within_limit(key, bytes);
}

void Store::keep_within_limit(const Digest& key, std::size_t published_bytes) const {
    const std::uint64_t limit = options_.max_bytes;
    const auto published = static_cast<std::int64_t>(published_bytes);
    if (limit == 0 || bytes_before_scan_.fetch_sub(published, std::memory_order_relaxed) > published) return;
    const Path shard{options_.directory, layout::shard_name(key)};
    if (estimate_allocated_bytes(files_, shard) <= limit) return;

    const EvictionReport report = run_evictor({.start_above = limit, .stop_at = limit / 10 * 9});
    if (report.busy) return;
    const bool kept = report.kept && report.kept->bytes <= limit;
    if (!kept && report.status.ok()) {
        troubles_.tell_once(
            Trouble::over_limit,
            fmt::format("over its limit of {} bytes with what was used within the last {} hours: {}", limit,
                        kEvictionGrace / std::chrono::hours(1), options_.directory));
    } else if (!kept) {
        troubles_.tell_once(Trouble::over_limit, fmt::format("cannot be kept to its limit of {} bytes: {}",
                                                             limit, report.status.to_string()));
    }
    // Other processes publish too, and see the limit in their turn.
    constexpr std::uint64_t kShareOfRoom = 16;
    bytes_before_scan_ =
        static_cast<std::int64_t>((kept ? limit - report.kept->bytes : limit / 10) / kShareOfRoom);
}

EvictionReport Store::run_evictor(const EvictionLimits& limits) const {
    EvictionLimits complete = limits;
    complete.directory_mode = directory_mode();
    EvictionReport report = evict(files_, options_.directory, complete);
    if (report.entries > 0) {
        count(Event::eviction, report.entries);
        count(Event::bytes_evicted, report.entry_bytes);
    }
    return report;
}

Result<StagedFile> Store::create_staged_file(const Digest& key) const {
    constexpr int kAttempts = 8;  // for names taken and directories removed under us
    Status status;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        const std::string name = layout::staging_name(key, unique_token());
        Path path{options_.directory, layout::in_directory(layout::kStagingDirectory, name)};
        Result<std::unique_ptr<File>> file = files_.create_exclusively(path, entry_mode());
        if (file) return StagedFile(files_, std::move(path), std::move(file).value());
        status = file.status();
        if (status.error_number == ENOENT) {
            if (Status made = make_directory_in_root(layout::kStagingDirectory); !made.ok()) return made;
        } else if (status.error_number != EEXIST) {
            return status;
        }
    }
    return status;
}

Result<bool> Store::move_into_shard(StagedFile& staged, const layout::EntryName& name) const {
    const Path target{options_.directory, layout::entry_path(name)};
    Status status = staged.move_to(target);
    if (status.ok()) return false;
    if (status.error_number != ENOENT) return status;
    if (Status made = make_directory_in_root(layout::shard_name(name.key)); !made.ok()) return made;
    status = staged.move_to(target);
    if (!status.ok()) return status;
    return true;
}

}  // namespace attnsmith::cache
