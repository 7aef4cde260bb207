#include "cache/store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>

#include "cache/bundle_layer.hpp"
#include "cache/directory_layer.hpp"
#include "cache/entry_file.hpp"
#include "cache/layout.hpp"
#include "cache/staged_file.hpp"

namespace attnsmith::cache {

// Bits of told_.
enum class Store::Trouble : std::uint32_t {
    cannot_write = 1,
    cannot_read = 2,
    no_locks = 4,
    lock_timed_out = 8,
    broken_in_layer = 16,
    cannot_quarantine = 32,
};

namespace {

constexpr std::uint32_t kPrivateDirectory = 0700;
constexpr std::uint32_t kDirectoryBits = 0777;
constexpr std::uint32_t kFileBits = 0666;

std::string without_trailing_slashes(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

Options normalised(Options options) {
    options.directory = without_trailing_slashes(std::move(options.directory));
    for (std::string& layer : options.read_only_layers) layer = without_trailing_slashes(std::move(layer));
    return options;
}

bool is_absence(const Status& status) {
    return status.error_number == ENOENT || status.error_number == ESTALE;
}

bool is_lack_of_locks(const Status& status) {
    return status.error_number == ENOLCK || status.error_number == ENOSYS ||
           status.error_number == EOPNOTSUPP;
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
      files_(options_.file_system != nullptr ? *options_.file_system : posix_file_system()) {
    layers_.push_back(std::make_unique<DirectoryLayer>(files_, options_.directory));
    for (const std::string& path : options_.read_only_layers) layers_.push_back(open_layer(path));
}

Store::~Store() = default;

std::unique_ptr<const Layer> Store::open_layer(const std::string& path) const {
    const Result<FileInfo> info = files_.stat({path, {}});
    if (!info || info->kind != FileKind::regular) return std::make_unique<DirectoryLayer>(files_, path);
    auto bundle = std::make_unique<BundleLayer>(files_, path);
    if (!bundle->status().ok()) {
        warn(fmt::format("a read-only layer is passed over: {}", bundle->status().to_string()));
    }
    return bundle;
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

std::vector<Candidate> Store::candidates(const Digest& key) const {
    std::vector<Candidate> found;
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
        const Result<std::vector<Version>> versions = layers_[layer]->versions_of(key);
        if (!versions) {
            static_cast<void>(cannot_read(versions.status()));
            continue;
        }
        for (const Version& version : *versions) {
            found.push_back({key, version, layer, layers_[layer]->path_of({key, version})});
        }
    }
    std::sort(found.begin(), found.end(), newest_first);
    return found;
}

Result<Entry> Store::load(const Candidate& candidate) const {
    if (candidate.layer >= layers_.size())
        return Status::fatal_error(EINVAL, candidate.path, "no such layer");
    const layout::EntryName name{candidate.key, candidate.version};
    // By name, not by candidate.path: a path is only ever built from a digest and integers.
    const Layer& layer = *layers_[candidate.layer];

    Result<EntryFile> file = layer.read(name);
    // NFS: replaced between our look at the directory and our read; the second look is fresh.
    if (file.status().error_number == ESTALE) file = layer.read(name);
    if (!file) return cannot_read(file.status());

    DecodeResult result = check_entry_file(*file, name);
    if (auto* decoded = std::get_if<DecodedEntry>(&result)) return std::move(decoded->entry);
    const auto& failure = *std::get_if<DecodeFailure>(&result);
    if (failure.broken()) return broken_entry(candidate, file->info, failure.reason);
    return Status::recoverable_error(EPROTONOSUPPORT, layer.path_of(name), failure.reason);
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
    if (!now && now.status().error_number != ENOENT) return now.status();
    if (!now || !now->same_file(broken)) return false;

    if (Status made = make_directory_in_root(layout::kQuarantineDirectory); !made.ok()) return made;
    const std::string aside = layout::quarantine_name(name, layout::unique_token());
    Status renamed =
        files_.rename(path, {options_.directory, layout::in_directory(layout::kQuarantineDirectory, aside)});
    if (renamed.error_number == ENOENT) return false;
    if (!renamed.ok()) return renamed;
    return true;
}

Status Store::make_directory_in_root(std::string_view name) const {
    const Path root{options_.directory, {}};
    if (Status made = files_.make_directory(root, kPrivateDirectory); !made.ok()) return made;
    return files_.make_directory({options_.directory, std::string(name)}, directory_mode());
}

Status Store::publish(const Digest& key, const Version& version, const Entry& entry) const noexcept {
    try {
        if (Status status = check_publishable(version, entry); !status.ok()) return status;
        Status status = options_.directory.empty()
                            ? no_cache_directory()
                            : publish_bytes(key, version, encode_entry(key, version, entry));
        return status.ok() ? status : cannot_write(std::move(status));
    } catch (const std::bad_alloc&) {
        return {StatusClass::recoverable, ENOMEM, {}, "out of memory"};  // short: allocates nothing
    } catch (...) {
        return {StatusClass::fatal, EINVAL, {}, "warn threw"};
    }
}

Status Store::publish_bytes(const Digest& key, const Version& version,
                            std::span<const std::byte> bytes) const {
    Result<StagedFile> staged = create_staged_file(key);
    if (!staged) return staged.status();
    if (Status written = staged->append(bytes); !written.ok()) return written;
    if (Status finished = staged->finish(); !finished.ok()) return finished;

    const Path shard{options_.directory, layout::shard_name(key)};
    const Path target{options_.directory, layout::entry_path({key, version})};
    if (Status moved = move_into_shard(*staged, shard, target); !moved.ok()) return moved;
    return files_.sync_directory(shard);
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

Status Store::move_into_shard(StagedFile& staged, const Path& shard, const Path& target) const {
    Status status = staged.move_to(target);
    if (status.error_number != ENOENT) return status;
    if (Status made = make_directory_in_root(shard.relative); !made.ok()) return made;
    if (Status synced = files_.sync_directory({options_.directory, {}}); !synced.ok()) return synced;
    return staged.move_to(target);
}

Lock Store::lock_within(const Digest& key, std::chrono::nanoseconds wait) const {
    const bool waits = wait > std::chrono::nanoseconds::zero();
    if (options_.directory.empty()) {
        return tell_of_trouble(Lock(LockState::unavailable, no_cache_directory(), {}, nullptr), waits);
    }
    const Path path{options_.directory, layout::lock_path(key)};
    Lock lock = acquire_lock(files_, path, file_mode(), wait);
    if (lock.status().error_number != ENOENT) return tell_of_trouble(std::move(lock), waits);

    if (Status made = make_directory_in_root(layout::kLocksDirectory); !made.ok()) {
        return tell_of_trouble(Lock(LockState::unavailable, std::move(made), lock.waited(), nullptr), waits);
    }
    return tell_of_trouble(acquire_lock(files_, path, file_mode(), wait - lock.waited()), waits);
}

Lock Store::tell_of_trouble(Lock lock, bool waits) const {
    if (lock.state() == LockState::timed_out) {
        if (!waits) return lock;
        warn_once(
            Trouble::lock_timed_out,
            fmt::format("waited {:.1f} s in vain for another process, going on without: {}",
                        std::chrono::duration<double>(lock.waited()).count(), lock.status().to_string()));
    } else if (is_lack_of_locks(lock.status())) {
        warn_once(Trouble::no_locks,
                  fmt::format("processes may do the same work twice, the file system has no locks: {}",
                              lock.status().to_string()));
    } else if (lock.state() == LockState::unavailable) {
        static_cast<void>(cannot_write(lock.status()));
    }
    return lock;
}

}  // namespace attnsmith::cache
