// The cubin store: entries on disk under 128-bit keys, one file for each (key, toolchain version), in one
// directory that may be written and any number of read-only layers below it. FORMAT.md gives the files,
// README.md the costs.
//
// Storing is best effort and loading is exact: what load() gives is byte for byte what was published under
// that key and version, or there is a miss. No trouble with the disk is worse than a miss.
//
// Thread-safe, and safe between processes that share the directory, also after fork. Keeps nothing open
// between calls but the bundles among its layers. Nothing throws but std::bad_alloc, and publish() not even
// that; no environment variable is read.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/digest.hpp"
#include "cache/entry.hpp"
#include "cache/file_system.hpp"
#include "cache/lock.hpp"
#include "cache/status.hpp"

namespace attnsmith::cache {

class Layer;
class StagedFile;
struct FoundEntry;

// Told about trouble once for each store and kind; quarantines are told each. Called from any thread that
// uses the store; must not throw.
using WarnCallback = std::function<void(std::string_view)>;

struct Options {
    // (The `= {}` let a caller name only what it sets, without a warning of GCC's.)
    // Made when first needed, parents included, with mode 0700. What is made inside takes its permission
    // bits, so a directory that was made 0755 beforehand can be baked into an image for every user. Empty:
    // nothing is kept.
    std::string directory = {};
    // Searched after `directory`; never written to. Directories, and bundles: a path that is a file when the
    // store is made is opened then, once. Others may appear later.
    std::vector<std::string> read_only_layers = {};
    // Not owned; must outlive the store. Null: posix_file_system().
    FileSystem* file_system = nullptr;
    WarnCallback warn = {};
    // The longest lock() waits. Far above any compile: only for file systems that lie.
    std::chrono::nanoseconds lock_wait = std::chrono::seconds(120);
};

// Layer 0 is the writable directory, layer n the n-th of Options::read_only_layers, from 1.
inline constexpr std::size_t kWritableLayer = 0;

// An entry that a directory names; its bytes are not looked at yet.
struct Candidate {
    Digest key;
    Version version;
    std::size_t layer = kWritableLayer;
    std::string path;
};

struct ListedEntry {
    Digest key;
    Version version;
    std::uint64_t bytes = 0;
    FileTime modified;
    std::size_t layer = kWritableLayer;
    std::string path;
    std::string metadata;  // as it stands there, unchecked; empty if it could not be read
};

struct LayerStatistics {
    std::string directory;
    std::uint64_t entries = 0;
    std::uint64_t bytes = 0;
};

struct Statistics {
    std::string directory;
    bool writable = false;
    std::string not_writable_because;  // empty if writable
    std::uint64_t entries = 0;         // in the writable directory, as all below but `layers`
    std::uint64_t bytes = 0;
    std::uint64_t quarantined = 0;
    std::uint64_t staging = 0;
    std::vector<LayerStatistics> layers;  // the read-only ones
};

struct BadEntry {
    std::string path;
    std::string reason;
    std::string action;  // "quarantined", or why it was left in place
};

struct VerifyReport {
    std::uint64_t checked = 0;  // entries looked at, bad ones included
    std::uint64_t skipped = 0;  // whole entries of another format version
    std::uint64_t stale_staging_removed = 0;
    std::vector<BadEntry> bad;
};

struct ClearReport {
    std::uint64_t entries = 0;
    std::uint64_t staging = 0;
    std::uint64_t quarantined = 0;
    std::uint64_t locks = 0;
    std::uint64_t bytes = 0;  // freed
    Status status;            // the first removal that failed
};

struct ExportReport {
    std::string file;
    std::uint64_t entries = 0;  // in the bundle; with none, no file is written
    std::uint64_t bytes = 0;    // the bundle's length
    std::uint64_t skipped = 0;  // whole entries of another format version, left out
    std::vector<BadEntry> bad;  // broken or unreadable ones, left out and left in place
};

struct ImportReport {
    std::string file;
    std::uint64_t entries = 0;    // in the bundle
    std::uint64_t published = 0;  // of those, what is new in the writable directory
    std::uint64_t present = 0;    // what was there already
    std::uint64_t bytes = 0;      // of what is new
};

class Store {
  public:
    explicit Store(Options options);
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;
    ~Store();

    const Options& options() const { return options_; }

    // Every version present, newest first; of equal versions the one in the lower layer first. Empty where
    // nothing is there or can be read.
    std::vector<Candidate> candidates(const Digest& key) const;

    // Reads the whole file and checks it. A miss is a recoverable status: ENOENT when the entry is gone,
    // EBADMSG when it is broken (it is in quarantine then, unless it lies in a read-only layer),
    // EPROTONOSUPPORT when it is of another format version, else what the system said.
    Result<Entry> load(const Candidate& candidate) const;

    // Success: the entry is there for all processes and stays through a power cut. A recoverable status: it
    // is not (or, if only the directory could not be synced, may not stay); the caller uses the bytes that it
    // has. A fatal status: the metadata is not a JSON object, a version part is negative, or the entry is
    // over kMaxEntryBytes. Replaces an entry of the same key and version; readers see one or the other,
    // whole.
    Status publish(const Digest& key, const Version& version, const Entry& entry) const noexcept;

    // One holder for each key over all threads and processes. Waits at most Options::lock_wait; try_lock()
    // not at all (LockState::timed_out: somebody has it).
    Lock lock(const Digest& key) const { return lock_within(key, options_.lock_wait); }
    Lock try_lock(const Digest& key) const { return lock_within(key, {}); }

    // Ordered by key, then as candidates() are.
    std::vector<ListedEntry> list() const;
    Statistics stat() const;
    // Reads every byte of every entry; quarantines what is broken; removes stale staging files.
    VerifyReport verify() const;
    // Empties the writable directory: entries, quarantine, stale staging files, lock files that nobody holds.
    // Touches only files named as the store names them. Entries published meanwhile may stay.
    ClearReport clear() const;

    // Writes the entries that are wanted into one file (FORMAT.md, "A bundle"), replacing what file of that
    // name there is; it appears whole or not at all. Looks in all layers, and of equal key and version takes
    // the lowest layer's. The same entries give the same bytes. Fails with EEXIST where something else than a
    // file has the name, E2BIG where the entries are too many for one bundle, ESTALE where the cache keeps
    // changing, else with what the system said.
    using Wanted = std::function<bool(const ListedEntry&)>;
    Result<ExportReport> export_bundle(const std::string& file, const Wanted& wanted) const;
    // Checks every byte of a bundle, and only then publishes its entries in the writable directory; each is
    // checked once more then. What is there already stays. Fails as Bundle::open() does: EINVAL for what is
    // not a regular file, EBADMSG for what is not a sound bundle, EPROTONOSUPPORT for one of another format;
    // these publish nothing. Else with what the system said; what was published before then stays.
    Result<ImportReport> import_bundle(const std::string& file) const;

  private:
    enum class Trouble : std::uint32_t;

    std::unique_ptr<const Layer> open_layer(const std::string& path) const;
    std::uint32_t directory_mode() const;
    std::uint32_t file_mode() const;

    void warn(std::string_view message) const;
    void warn_once(Trouble trouble, std::string_view message) const;
    // Warns and gives the status back.
    Status cannot_write(Status status) const;
    Status cannot_read(Status status) const;

    Status broken_entry(const Candidate& candidate, const FileInfo& broken, const std::string& reason) const;
    // False if the broken file is gone from there already, as when somebody replaced it.
    Result<bool> quarantine(const Candidate& candidate, const FileInfo& broken) const;

    Status make_directory_in_root(std::string_view name) const;
    Status publish_bytes(const Digest& key, const Version& version, std::span<const std::byte> bytes) const;
    Result<StagedFile> create_staged_file(const Digest& key) const;
    Status move_into_shard(StagedFile& staged, const Path& shard, const Path& target) const;
    Lock lock_within(const Digest& key, std::chrono::nanoseconds wait) const;
    Lock tell_of_trouble(Lock lock, bool waits) const;

    Result<ExportReport> export_once(const Path& target, const Wanted& wanted) const;

    void verify_layer(std::size_t layer, VerifyReport& report) const;
    void verify_entry(const FoundEntry& found, std::size_t layer, VerifyReport& report) const;

    Options options_;
    FileSystem& files_;
    std::vector<std::unique_ptr<const Layer>> layers_;  // by Candidate::layer
    // One bit for each Trouble told. Not a mutex: a child forked while another thread holds one would hang on
    // it.
    mutable std::atomic<std::uint32_t> told_{0};
};

}  // namespace attnsmith::cache
