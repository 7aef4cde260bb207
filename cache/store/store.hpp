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
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "cache/digest/digest.hpp"
#include "cache/files/file_system.hpp"
#include "cache/files/lock.hpp"
#include "cache/files/patience.hpp"
#include "cache/files/status.hpp"
#include "cache/files/trust.hpp"
#include "cache/store/counters.hpp"
#include "cache/store/entry.hpp"
#include "cache/store/evictor.hpp"

namespace attnsmith::cache {

class Bundle;
class Layer;
class StagedFile;
struct BundleHead;
struct BundledEntry;
struct FoundEntry;
namespace layout {
struct EntryName;
}

// Told about trouble once for each store and kind; quarantines are told each. Called from any thread that
// uses the store; must not throw.
using WarnCallback = std::function<void(std::string_view)>;

inline constexpr std::uint64_t kDefaultMaxBytes = std::uint64_t{2} << 30;

struct Options {
    // (The `= {}` let a caller name only what it sets, without a warning of GCC's.)
    // Made when first needed, parents included, with mode 0700. What is made inside takes its permission
    // bits, whatever the umask, so a directory that was made 0755 beforehand can be baked into an image for
    // every user, and one of mode 2770 be shared by a group that trusts itself. Empty: nothing is kept.
    std::string directory = {};
    // Searched after `directory`; never written to. Directories, and bundles: a path that is a file when the
    // store is made is opened then, once. Others may appear later.
    std::vector<std::string> read_only_layers = {};
    // Whose directories and entries are used. Others are passed over, with one warning for each directory.
    Trust trust = Trust::owner;
    // What the entries of `directory` may take on its disk; the least recently used go first, but none that
    // was used within kStampIsOldAfter. Kept to within what a shard's size tells of the whole. 0: no limit.
    std::uint64_t max_bytes = kDefaultMaxBytes;
    // Not owned; must outlive the store. Null: posix_file_system().
    FileSystem* file_system = nullptr;
    WarnCallback warn = {};
    // Asked by verify(), export_bundle() and import_bundle(), for whom an entry with a fault is broken.
    // load() leaves it to its caller, who knows what the entry is to be used for.
    CheckContent check_content = {};
    // The longest wait for another process or thread. Far above any compile: only for file systems that lie
    // and for holders that hang. Once one was in vain, further ones are a 120th of it, until one pays off.
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

    friend bool operator==(const Candidate&, const Candidate&) = default;
};

struct ListedEntry {
    Digest key;
    Version version;
    std::uint64_t bytes = 0;
    FileTime modified;  // published or, to kStampIsOldAfter, last read
    std::size_t layer = kWritableLayer;
    std::string path;
    std::string metadata;  // as it stands there, unchecked; empty where the file is too broken to have one
};

struct Listing {
    std::vector<ListedEntry> entries;  // ordered by key, then as candidates() are
    std::vector<Status> unreadable;    // directories, bundles and entries: nothing is known of what is there
};

struct LayerStatistics {
    std::string directory;
    std::uint64_t entries = 0;
    std::uint64_t bytes = 0;
    std::uint64_t allocated_bytes = 0;  // on the disk
    std::string not_trusted_because;    // empty if it is, and so is used
    std::string trust_remedy;           // of one that is not trusted
    std::string not_usable_because;     // nothing is there, say, or no bundle; empty if it is
    std::vector<Status> unreadable;     // the numbers lack what is there
};

struct Statistics {
    std::string directory;
    bool writable = false;
    std::string not_writable_because;  // empty if writable
    std::string not_trusted_because;   // empty if it is trusted; else it is neither read nor written
    std::string trust_remedy;          // of one that is not trusted
    std::uint64_t entries = 0;         // in the writable directory, as all below but `layers`
    std::uint64_t bytes = 0;
    std::uint64_t allocated_bytes = 0;  // on the disk
    std::uint64_t max_bytes = 0;        // of those; 0: no limit
    std::vector<Status> unreadable;     // the numbers lack what is there
    std::uint64_t quarantined = 0;
    std::uint64_t staging = 0;
    CounterTotals counters;
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
    std::uint64_t unusable = 0;  // of `bad`, what could not be looked into: directories and bundles, mostly
};

struct ClearReport {
    std::uint64_t entries = 0;
    std::uint64_t staging = 0;
    std::uint64_t quarantined = 0;
    std::uint64_t locks = 0;
    std::uint64_t bytes = 0;         // freed
    std::uint64_t staging_left = 0;  // of under an hour: somebody may be writing them
    std::uint64_t locks_left = 0;    // held by somebody
    Status status;                   // the first removal that failed
};

struct RemoveReport {
    std::uint64_t entries = 0;  // removed: one for each toolchain that the key had
    std::uint64_t bytes = 0;    // freed
    std::uint64_t left = 0;     // in read-only layers, which are never written to
    Status status;              // the first removal, or look at a layer, that failed
};

struct ExportReport {
    std::string file;
    std::vector<Digest> keys;        // of the entries in the bundle, in its order
    std::uint64_t entries = 0;       // in the bundle; with none, no file is written
    std::uint64_t bytes = 0;         // the bundle's length
    std::uint64_t skipped = 0;       // whole entries of another format version, left out
    std::vector<BadEntry> bad;       // broken, unreadable and untrusted ones, left out and left in place
    std::vector<Status> unreadable;  // where there may be more that is wanted
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
    ~Store();  // writes down what was counted
    Store(const Store&) = delete;
    Store& operator=(const Store&) = delete;

    const Options& options() const { return options_; }

    // Every version present, newest first; of equal versions the one in the lower layer first. Empty where
    // nothing is there or can be read.
    std::vector<Candidate> candidates(const Digest& key) const;

    // Reads the whole file and checks it. A miss is a recoverable status: ENOENT when the entry is gone,
    // EBADMSG when it is broken (it is in quarantine then, unless it lies in a read-only layer),
    // EPROTONOSUPPORT when it is of another format version, EPERM when it is not trusted (whether its
    // directory is, candidates() has judged), else what the system said.
    Result<Entry> load(const Candidate& candidate) const;

    // Why layers are passed over by candidates(): those that are not trusted, or that the system does not let
    // be read. Tells nobody else.
    std::vector<Status> passed_over() const;

    // Success: the entry is there for all processes and stays through a power cut. A recoverable status: it
    // is not (or, if only the directory could not be synced, may not stay); the caller uses the bytes that it
    // has. A fatal status: the metadata is not a JSON object, a version part is negative, or the entry is
    // over kMaxEntryBytes. Replaces an entry of the same key and version; readers see one or the other,
    // whole.
    Status publish(const Digest& key, const Version& version, const Entry& entry) const noexcept;

    // One holder for each key over all threads and processes. Waits at most Options::lock_wait; try_lock()
    // not at all (LockState::timed_out: somebody has it). `enough`, asked now and then while lock() waits,
    // ends the wait (LockState::not_needed).
    Lock lock(const Digest& key, const std::function<bool()>& enough = {}) const;
    Lock try_lock(const Digest& key) const;

    // Warns that a wait of this length for `whom` was in vain, be it for lock() or of another kind: once.
    void tell_of_vain_wait(std::chrono::nanoseconds waited, std::string_view whom) const;

    // Adds to the directory's counters. Quarantines, evictions and bytes the store counts itself.
    void count(Event event, std::uint64_t count = 1) const;

    Listing list() const;
    Statistics stat() const;
    // Reads every byte of every entry; quarantines what is broken, but no directories; removes stale staging
    // files.
    VerifyReport verify() const;
    // Removes what the limit says and dead processes left, as publish() does now and then. With `max_bytes`,
    // also what was used just now, until the entries take no more than that. Waits ten seconds at most for
    // another evictor.
    EvictionReport gc(std::optional<std::uint64_t> max_bytes) const;
    // Empties the writable directory: entries, quarantine, stale staging files, lock files that nobody holds,
    // counters. Touches only files named as the store names them, and no directories. Entries published
    // meanwhile may stay.
    ClearReport clear() const;
    // Removes the key's entries from the writable directory.
    RemoveReport remove(const Digest& key) const;

    // Writes the entries that are wanted into one file (FORMAT.md, "A bundle"), replacing what file of that
    // name there is; it appears whole or not at all. Looks in all layers, and of equal key and version takes
    // the lowest layer's. The same entries give the same bytes. Fails with EEXIST where something else than a
    // file has the name, E2BIG where the entries are too many for one bundle, ECANCELED where a stop was
    // asked for, else with what the system said. What others evict or clear meanwhile is not in the bundle.
    using Wanted = std::function<bool(const ListedEntry&)>;
    Result<ExportReport> export_bundle(const std::string& file, const Wanted& wanted,
                                       const std::stop_token& stop = {}) const;
    // Checks every byte of a bundle, and only then publishes its entries in the writable directory; each is
    // checked once more then. What is there already stays. Fails as Bundle::open() does: EINVAL for what is
    // not a regular file, EBADMSG for what is not a sound bundle, EPROTONOSUPPORT for one of another format;
    // these publish nothing. Else with what the system said; what was published before then stays. A kill
    // at any moment leaves whole entries.
    Result<ImportReport> import_bundle(const std::string& file) const;

  private:
    enum class Trouble : std::uint32_t;

    // Whether a layer is trusted, judged at each use, for a directory may change hands. Success where there
    // is none yet; EPERM where it is not trusted, or what the system said. check_trust() also tells.
    Status judge(std::size_t layer) const;
    Status check_trust(std::size_t layer) const;
    std::unique_ptr<const Layer> open_layer(const std::string& path) const;
    std::uint32_t directory_mode() const;
    std::uint32_t file_mode() const;

    void warn(std::string_view message) const;
    void warn_once(Trouble trouble, std::string_view message) const;
    // Warns and gives the status back.
    Status cannot_write(Status status) const;
    Status cannot_read(Status status) const;
    void cannot_list(std::size_t layer, const Status& status) const;

    Status broken_entry(const Candidate& candidate, const FileInfo& broken, const std::string& reason) const;
    // False if the broken file is gone from there already, as when somebody replaced it. REQUIRES: it is open
    // still, or another file may have its inode.
    Result<bool> quarantine(const Candidate& candidate, const FileInfo& broken) const;

    Status make_directory_in_root(std::string_view name) const;
    Status publish_bytes(const Digest& key, const Version& version, std::span<const std::byte> bytes) const;
    Status publish_once(const Digest& key, const Version& version, std::span<const std::byte> bytes) const;
    void note_published(const Digest& key, std::size_t bytes) const;
    void keep_within_limit(const Digest& key, std::size_t published_bytes) const;
    EvictionReport run_evictor(const EvictionLimits& limits) const;
    Result<StagedFile> create_staged_file(const Digest& key) const;
    // Whether the shard had to be made, and so the directory is to be synced too.
    Result<bool> move_into_shard(StagedFile& staged, const layout::EntryName& name) const;
    Lock lock_within(const Digest& key, const Patience& patience, const std::function<bool()>& enough) const;
    Lock tell_of_trouble(Lock lock) const;

    Result<ExportReport> export_listed(const Path& target, std::span<const ListedEntry> listed,
                                       const std::stop_token& stop) const;
    Result<StagedFile> create_partial(const Path& target) const;
    Status finish_bundle(StagedFile staged, std::uint64_t room, const BundleHead& head,
                         const Path& target) const;
    Status end_bundle(StagedFile& staged, const Path& target) const;

    struct ImportBatch;
    Status import_entries(const Bundle& bundle, ImportReport& report) const;
    Status stage(const Bundle& bundle, const BundledEntry& entry, ImportBatch& batch) const;
    Status publish_batch(const Bundle& bundle, ImportBatch& batch, ImportReport& report) const;

    void verify_layer(std::size_t layer, VerifyReport& report) const;
    void verify_entry(const FoundEntry& found, std::size_t layer, VerifyReport& report) const;

    Options options_;
    FileSystem& files_;
    std::vector<std::unique_ptr<const Layer>> layers_;  // by Candidate::layer
    // One bit for each Trouble told. Not a mutex: a child forked while another thread holds one would hang on
    // it.
    mutable std::atomic<std::uint32_t> told_{0};
    mutable Patience patience_;  // with other processes
    mutable Counters counters_;
    // How much this process publishes before it looks at the directory's size again.
    mutable std::atomic<std::int64_t> bytes_before_scan_{0};
};

}  // namespace attnsmith::cache
