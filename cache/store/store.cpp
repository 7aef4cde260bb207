#include "cache/store/store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "cache/bundle/layer.hpp"
#include "cache/files/staged_file.hpp"
#include "cache/store/directory_layer.hpp"
#include "cache/store/entry_file.hpp"
#include "cache/store/judged_entry.hpp"
#include "cache/store/layout.hpp"

namespace attnsmith::cache {

// Bits of told_.
enum class Store::Trouble : std::uint32_t {
    cannot_write = 1,
    cannot_read = 2,
    no_locks = 4,
    waited_in_vain = 8,
    broken_in_layer = 16,
    cannot_quarantine = 32,
    untrusted_entry = 64,
    over_limit = 128,
    untrusted_directory = 1 << 16,  // and above: one for each of the first layers
};

namespace {

constexpr std::uint32_t kPrivateDirectory = 0700;
constexpr std::uint32_t kDirectoryBits = 0777;
constexpr std::size_t kLayersToldApart = 16;

std::string without_trailing_slashes(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

Options normalised(Options options) {
    options.directory = without_trailing_slashes(std::move(options.directory));
    for (std::string& layer : options.read_only_layers) layer = without_trailing_slashes(std::move(layer));
    return options;
}

bool newest_first(const Candidate& a, const Candidate& b) {
    return std::tie(b.version, a.layer) < std::tie(a.version, b.layer);
}

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

Store::Store(Options options)
    : options_(normalised(std::move(options))),
      files_(options_.file_system != nullptr ? *options_.file_system : posix_file_system()),
      patience_(options_.lock_wait),
      counters_(files_, options_.directory) {
    layers_.push_back(std::make_unique<DirectoryLayer>(files_, options_.directory));
    for (const std::string& path : options_.read_only_layers) layers_.push_back(open_layer(path));
}

Store::~Store() {
    try {
        if (judge(kWritableLayer).ok()) counters_.flush(directory_mode());
    } catch (...) {
        // What was counted is lost.
    }
}

void Store::count(Event event, std::uint64_t count) const {
    counters_.add(event, count);
    if (counters_.is_due() && check_trust(kWritableLayer).ok()) counters_.flush(directory_mode());
}

std::unique_ptr<const Layer> Store::open_layer(const std::string& path) const {
    const Result<FileInfo> info = files_.stat({path, {}});
    if (!info || info->kind != FileKind::regular) return std::make_unique<DirectoryLayer>(files_, path);
    auto bundle = std::make_unique<BundleLayer>(files_, path);
    if (!bundle->status().ok()) {
        warn(fmt::format("a read-only layer is passed over: {}", bundle->status().to_string()));
    }
    return bundle;
}

Status Store::judge(std::size_t layer) const {
    const std::string& root = layers_[layer]->path();
    const Result<FileInfo> info = files_.stat({root, {}});
    if (info.status().error_number == ENOENT) return Status::success();
    if (!info) return info.status();
    Status trusted = check_trusted(*info, options_.trust);
    if (!trusted.ok()) trusted.path = root;
    return trusted;
}

Status Store::check_trust(std::size_t layer) const {
    Status status = judge(layer);
    if (status.ok()) return status;
    if (status.error_number != EPERM) return cannot_read(std::move(status));
    const auto bit = static_cast<std::uint32_t>(Trouble::untrusted_directory)
                     << std::min(layer, kLayersToldApart - 1);
    warn_once(Trouble{bit},
              fmt::format("{}: {}",
                          layer == kWritableLayer ? "the cache is not used, kernels stay in memory only"
                                                  : "a read-only layer is passed over",
                          status.to_string()));
    return status;
}

std::uint32_t Store::directory_mode() const {
    const Result<FileInfo> root = files_.stat({options_.directory, {}});
    return root ? kPrivateDirectory | (root->mode & kDirectoryBits) : kPrivateDirectory;
}

std::uint32_t Store::file_mode() const { return directory_mode() & kFileBits; }

void Store::warn(std::string_view message) const {
    if (options_.warn) options_.warn(message);
}

void Store::warn_once(Trouble trouble, std::string_view message) const {
    const auto bit = static_cast<std::uint32_t>(trouble);
    const bool first_time = (told_.fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
    if (first_time) warn(message);
}

Status Store::cannot_write(Status status) const {
    warn_once(
        Trouble::cannot_write,
        fmt::format("the cache cannot be written, new kernels stay in memory only: {}", status.to_string()));
    return status;
}

Status Store::cannot_read(Status status) const {
    if (!is_absence(status)) {
        warn_once(Trouble::cannot_read, fmt::format("the cache cannot be read: {}", status.to_string()));
    }
    return status;
}

// What cannot be listed cannot be written either: one warning for both.
void Store::cannot_list(std::size_t layer, const Status& status) const {
    if (layer != kWritableLayer || is_absence(status)) {
        static_cast<void>(cannot_read(status));
        return;
    }
    constexpr auto kBoth =
        static_cast<std::uint32_t>(Trouble::cannot_read) | static_cast<std::uint32_t>(Trouble::cannot_write);
    const bool told = (told_.fetch_or(kBoth, std::memory_order_relaxed) & kBoth) != 0;
    if (!told)
        warn(fmt::format("the cache cannot be used, kernels stay in memory only: {}", status.to_string()));
}

std::vector<Candidate> Store::candidates(const Digest& key) const {
    std::vector<Candidate> found;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
        if (layers_[layer]->path().empty()) continue;
        if (!check_trust(layer).ok()) continue;
        const Result<std::vector<Version>> versions = layers_[layer]->versions_of(key);
        if (!versions) {
            cannot_list(layer, versions.status());
            continue;
        }
        for (const Version& version : *versions) {
            found.push_back({key, version, layer, layers_[layer]->path_of({key, version})});
        }
    }
    std::sort(found.begin(), found.end(), newest_first);
    return found;
}

std::vector<Status> Store::passed_over() const {
    std::vector<Status> reasons;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
        if (layers_[layer]->path().empty()) continue;
        if (Status judged = judge(layer); !judged.ok()) reasons.push_back(std::move(judged));
    }
    return reasons;
}

Result<Entry> Store::load(const Candidate& candidate) const {
    if (candidate.layer >= layers_.size())
        return Status::fatal_error(EINVAL, candidate.path, "no such layer");
    const layout::EntryName name{candidate.key, candidate.version};
    // By name, not by candidate.path: a path is only ever built from a digest and integers.
    const Layer& layer = *layers_[candidate.layer];

    JudgedEntry judged = judge_entry(layer, name, options_.trust);
    switch (judged.verdict) {
        case Verdict::sound:
            break;
        case Verdict::gone:
        case Verdict::unreadable:
            return cannot_read(std::move(judged.status));
        case Verdict::untrusted:
            warn_once(Trouble::untrusted_entry,
                      fmt::format("an entry is passed over: {}", judged.status.to_string()));
            return std::move(judged.status);
        case Verdict::of_another_format:
            return std::move(judged.status);
        case Verdict::broken:
            return broken_entry(candidate, judged.file.info, judged.status.message);
    }
    // Its stamp is what the evictor goes by. In another user's directory it may not be ours to set.
    const bool is_stale = is_old_stamp(judged.file.info.modified, std::chrono::system_clock::now());
    if (candidate.layer == kWritableLayer && is_stale) static_cast<void>(judged.file.file->touch());
    count(Event::bytes_read, judged.file.size);
    return std::move(judged.entry);
}

Status Store::broken_entry(const Candidate& candidate, const FileInfo& broken,
                           const std::string& reason) const {
    Status miss =
        Status::recoverable_error(EBADMSG, candidate.path, fmt::format("broken cache entry ({})", reason));
    if (candidate.layer != kWritableLayer) {
        warn_once(Trouble::broken_in_layer,
                  fmt::format("passed over in a read-only layer: {}", miss.to_string()));
        return miss;
    }
    const Result<bool> moved = quarantine(candidate, broken);
    if (!moved) {
        warn_once(Trouble::cannot_quarantine,
                  fmt::format("{}; {}", miss.to_string(), moved.status().to_string()));
    } else if (*moved) {
        warn(fmt::format("quarantined a {}", miss.to_string()));
    }
    return miss;
}

Result<bool> Store::quarantine(const Candidate& candidate, const FileInfo& broken) const {
    const layout::EntryName name{candidate.key, candidate.version};
    const Path path{options_.directory, layout::entry_path(name)};
    const Result<FileInfo> now = files_.stat(path);
    if (!now && !is_absence(now.status())) return now.status();
    if (!now || !now->same_file(broken)) return false;

    if (Status made = make_directory_in_root(layout::kQuarantineDirectory); !made.ok()) return made;
    const std::string aside = layout::quarantine_name(name, layout::unique_token());
    Status renamed =
        files_.rename(path, {options_.directory, layout::in_directory(layout::kQuarantineDirectory, aside)});
    if (is_absence(renamed)) return false;
    if (!renamed.ok()) return renamed;

    // Somebody may have published between our look and the rename: what was theirs goes back, unless there is
    // a newer one already.
    const Path moved{options_.directory, layout::in_directory(layout::kQuarantineDirectory, aside)};
    const Result<FileInfo> found = files_.stat(moved);
    if (!found || found->same_file(broken)) {
        count(Event::quarantine);
        return true;
    }
    static_cast<void>(files_.rename_if_free(moved, path));
    return false;
}

Status Store::make_directory_in_root(std::string_view name) const {
    const Path root{options_.directory, {}};
    if (Status made = files_.make_directory(root, kPrivateDirectory); !made.ok()) return made;
    return files_.make_directory({options_.directory, std::string(name)}, directory_mode());
}

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
        warn_once(Trouble::over_limit,
                  fmt::format("over its limit of {} bytes with what was used within the last {} hours: {}",
                              limit, kEvictionGrace / std::chrono::hours(1), options_.directory));
    } else if (!kept) {
        warn_once(Trouble::over_limit, fmt::format("cannot be kept to its limit of {} bytes: {}", limit,
                                                   report.status.to_string()));
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
        const std::string name = layout::staging_name(key, layout::unique_token());
        Path path{options_.directory, layout::in_directory(layout::kStagingDirectory, name)};
        Result<std::unique_ptr<File>> file = files_.create_exclusively(path, file_mode());
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

Lock Store::lock(const Digest& key, const std::function<bool()>& enough) const {
    Lock lock = lock_within(key, patience_, enough);
    if (lock.state() == LockState::timed_out) {
        patience_.waited_in_vain();
        tell_of_vain_wait(lock.waited(), "another process");
    } else if (lock.state() == LockState::acquired_after_waiting || lock.state() == LockState::not_needed) {
        patience_.wait_paid_off();
    }
    return lock;
}

Lock Store::try_lock(const Digest& key) const { return lock_within(key, Patience({}), {}); }

Lock Store::lock_within(const Digest& key, const Patience& patience,
                        const std::function<bool()>& enough) const {
    if (options_.directory.empty()) return {LockState::unavailable, no_cache_directory(), {}, nullptr};
    if (Status trusted = check_trust(kWritableLayer); !trusted.ok()) {
        return {LockState::unavailable, std::move(trusted), {}, nullptr};
    }
    const Path path{options_.directory, layout::lock_path(key)};
    return tell_of_trouble(acquire_lock(files_, path, file_mode(), patience, enough,
                                        [&] { return make_directory_in_root(layout::kLocksDirectory); }));
}

Lock Store::tell_of_trouble(Lock lock) const {
    // Where no lock file can be made, nothing can be published, which publish() tells.
    if (lock.state() == LockState::unavailable && is_lack_of_locks(lock.status())) {
        warn_once(Trouble::no_locks,
                  fmt::format("processes may do the same work twice, the file system has no locks: {}",
                              lock.status().to_string()));
    }
    return lock;
}

void Store::tell_of_vain_wait(std::chrono::nanoseconds waited, std::string_view whom) const {
    warn_once(Trouble::waited_in_vain,
              fmt::format("waited {:.1f} s in vain for {}, going on without; further waits are shorter",
                          std::chrono::duration<double>(waited).count(), whom));
}

}  // namespace attnsmith::cache
