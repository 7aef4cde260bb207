#include "cache/store/store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "cache/bundle/layer.hpp"
#include "cache/entries/directory_layer.hpp"
#include "cache/entries/entry_file.hpp"
#include "cache/entries/judged_entry.hpp"
#include "cache/entries/layout.hpp"
#include "cache/files/staged_file.hpp"
#include "cache/files/unique_token.hpp"

namespace attnsmith::cache {

namespace {

constexpr std::uint32_t kPrivateDirectory = 0700;
constexpr std::uint32_t kDirectoryBits = 0777;

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

Status broken_miss(const Candidate& candidate, const std::string& reason) {
    return Status::recoverable_error(EBADMSG, candidate.path, fmt::format("broken cache entry ({})", reason));
}

}  // namespace

Store::Store(Options options)
    : options_(normalised(std::move(options))),
      files_(options_.file_system != nullptr ? *options_.file_system : posix_file_system()),
      troubles_(options_.warn),
      patience_(options_.lock_wait),
      counters_(files_, options_.directory) {
    layers_.push_back(std::make_unique<DirectoryLayer>(files_, options_.directory));
    for (const std::string& path : options_.read_only_layers) layers_.push_back(open_layer(path));
    // A mistyped path is told before anything is compiled that the layer should have had.
    for (std::size_t layer = kWritableLayer + 1; layer < layers_.size(); ++layer) {
        if (const Status missing = is_missing(layer); !missing.ok())
            troubles_.tell(fmt::format("a read-only layer is missing: {}", missing.to_string()));
    }
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
    auto bundle = std::make_unique<BundleLayer>(files_, path, options_.trusted_keys);
    if (!bundle->status().ok()) {
        troubles_.tell(fmt::format("a read-only layer is passed over: {}", bundle->status().to_string()));
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

Status Store::is_missing(std::size_t layer) const {
    // The writable directory is made when the first entry is stored.
    if (layer == kWritableLayer || layers_[layer]->outlives_path()) return Status::success();
    const Status status = files_.stat({layers_[layer]->path(), {}}).status();
    return status.error_number == ENOENT ? status : Status::success();
}

Status Store::check_trust(std::size_t layer) const {
    Status status = judge(layer);
    if (status.ok()) return status;
    if (status.error_number != EPERM) return cannot_read(std::move(status));
    troubles_.tell_once(
        untrusted_layer(layer),
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

// Who trusts keys loads from directories only what nobody else may write to: its own entries are to be such.
std::uint32_t Store::entry_mode() const {
    constexpr std::uint32_t kOthersWrite = 022;
    return options_.trusted_keys.empty() ? file_mode() : file_mode() & ~kOthersWrite;
}

Status Store::cannot_write(Status status) const {
    troubles_.tell_once(
        Trouble::cannot_write,
        fmt::format("the cache cannot be written, new kernels stay in memory only: {}", status.to_string()));
    return status;
}

Status Store::cannot_read(Status status) const {
    if (!is_absence(status)) {
        troubles_.tell_once(Trouble::cannot_read,
                            fmt::format("the cache cannot be read: {}", status.to_string()));
    }
    return status;
}

// What cannot be listed cannot be written either: one warning for both.
void Store::cannot_list(std::size_t layer, const Status& status) const {
    if (layer != kWritableLayer || is_absence(status)) {
        static_cast<void>(cannot_read(status));
        return;
    }
    troubles_.tell_once(
        Trouble::cannot_read | Trouble::cannot_write,
        fmt::format("the cache cannot be used, kernels stay in memory only: {}", status.to_string()));
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
        Status reason = judge(layer);
        if (reason.ok()) reason = is_missing(layer);
        if (!reason.ok()) reasons.push_back(std::move(reason));
    }
    return reasons;
}

Result<Entry> Store::load(const Candidate& candidate) const {
    if (candidate.layer >= layers_.size())
        return Status::fatal_error(EINVAL, candidate.path, "no such layer");
    const layout::EntryName name{candidate.key, candidate.version};
    // By name, not by candidate.path: a path is only ever built from a digest and integers.
    const Layer& layer = *layers_[candidate.layer];

    JudgedEntry judged = judge_entry(layer, name, options_, Depth::bytes);
    switch (judged.verdict) {
        case Verdict::sound:
            break;
        case Verdict::gone:
        case Verdict::unreadable:
            return cannot_read(std::move(judged.status));
        case Verdict::untrusted:
            troubles_.tell_once(Trouble::untrusted_entry,
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

Result<Entry> Store::look_at(const Candidate& candidate) const {
    if (candidate.layer >= layers_.size())
        return Status::fatal_error(EINVAL, candidate.path, "no such layer");
    JudgedEntry judged =
        judge_entry(*layers_[candidate.layer], {candidate.key, candidate.version}, options_, Depth::bytes);
    if (judged.verdict == Verdict::broken) return broken_miss(candidate, judged.status.message);
    if (judged.verdict != Verdict::sound) return std::move(judged.status);
    return std::move(judged.entry);
}

Status Store::broken_entry(const Candidate& candidate, const FileInfo& broken,
                           const std::string& reason) const {
    Status miss = broken_miss(candidate, reason);
    if (candidate.layer != kWritableLayer) {
        troubles_.tell_once(Trouble::broken_in_layer,
                            fmt::format("passed over in a read-only layer: {}", miss.to_string()));
        return miss;
    }
    const Result<bool> moved = quarantine(candidate, broken);
    if (!moved) {
        troubles_.tell_once(Trouble::cannot_quarantine,
                            fmt::format("{}; {}", miss.to_string(), moved.status().to_string()));
    } else if (*moved) {
        troubles_.tell(fmt::format("quarantined a {}", miss.to_string()));
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
    const std::string aside = layout::quarantine_name(name, unique_token());
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
        troubles_.tell_once(
            Trouble::no_locks,
            fmt::format("processes may do the same work twice, the file system has no locks: {}",
                        lock.status().to_string()));
    }
    return lock;
}

void Store::tell_of_vain_wait(std::chrono::nanoseconds waited, std::string_view whom) const {
    troubles_.tell_once(
        Trouble::waited_in_vain,
        fmt::format("waited {:.1f} s in vain for {}, going on without; further waits are shorter",
                    std::chrono::duration<double>(waited).count(), whom));
}

}  // namespace attnsmith::cache
