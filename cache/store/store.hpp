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
#include "cache/entries/counters.hpp"
#include "cache/entries/entry.hpp"
#include "cache/entries/evictor.hpp"
#include "cache/entries/options.hpp"
#include "cache/entries/reports.hpp"
#include "cache/entries/troubles.hpp"
#include "cache/files/file_system.hpp"
#include "cache/files/lock.hpp"
#include "cache/files/patience.hpp"
#include "cache/files/status.hpp"
#include "cache/image/options.hpp"

namespace attnsmith::cache {

class Bundle;
class Layer;
class StagedFile;
class StagedLayout;
struct BundleHead;
struct BundledEntry;
struct FoundEntry;
namespace layout {
struct EntryName;
}

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
    // The same, but leaves everything as it is: a broken entry where it lies, stamps and counters.
    Result<Entry> look_at(const Candidate& candidate) const;

    // Why candidates() passes over layers: those that are missing, not trusted, or not readable. Warns of
    // nothing.
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
    // With a key, `<file>.sig` is the bundle's signature, and appears before it.
    using Wanted = std::function<bool(const ListedEntry&)>;
    Result<ExportReport> export_bundle(const std::string& file, const Wanted& wanted,
                                       const std::stop_token& stop = {},
                                       const SecretKey* sign_with = nullptr) const;
    // The same as an OCI image layout (FORMAT.md, "An image"), a directory, in which the entries are a layer.
    // It replaces an empty directory or an image that was exported to it, and appears whole or not at all.
    // Fails with EEXIST where anything else has the name, EINVAL for a tag that registries do not take,
    // ECANCELED where a stop was asked for, else with what the system said.
    Result<ImageReport> export_image(const ImageOptions& image, const Wanted& wanted,
                                     const std::stop_token& stop = {}) const;
    // What an export writes: the entries that are wanted, in its order, and of equal key and version the
    // lowest layer's first; and one of them, as it stands there now. That fails with ENOENT where it is gone,
    // EPROTONOSUPPORT where it is of another format version, EPERM where it is not trusted, EBADMSG where it
    // or its content is broken, else with what the system said; it stays where it is.
    Listing list_for_export(const Wanted& wanted) const;
    Result<Entry> read_for_export(const ListedEntry& listed) const;
    // Checks every byte of a bundle, and only then publishes its entries in the writable directory; each is
    // checked once more then. What is there already stays. Fails as Bundle::open() does: EINVAL for what is
    // not a regular file, EBADMSG for what is not a sound bundle, EPROTONOSUPPORT for one of another format;
    // EPERM for one that none of Options::trusted_keys signed, where there are any. These publish nothing.
    // Else with what the system said; what was published before then stays. A kill at any moment leaves
    // whole entries.
    Result<ImportReport> import_bundle(const std::string& file) const;

  private:
    // Success, or why a read-only layer is not there.
    Status is_missing(std::size_t layer) const;
    // Whether a layer is trusted, judged at each use, for a directory may change hands. Success where there
    // is none yet; EPERM where it is not trusted, or what the system said. check_trust() also tells.
    Status judge(std::size_t layer) const;
    Status check_trust(std::size_t layer) const;
    std::unique_ptr<const Layer> open_layer(const std::string& path) const;
    std::uint32_t directory_mode() const;
    std::uint32_t file_mode() const;
    std::uint32_t entry_mode() const;

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
                                       const std::stop_token& stop, const SecretKey* sign_with) const;
    Status finish_bundle(StagedFile staged, std::uint64_t room, const BundleHead& head, const Path& target,
                         const std::string& signature) const;
    Status end_bundle(StagedFile& staged, const Path& target, const std::string& signature) const;

    struct ImageLayer;
    Result<ImageLayer> write_layer(StagedLayout& staged, const Path& target,
                                   std::span<const ListedEntry> listed, const std::stop_token& stop) const;

    struct ImportBatch;
    Status import_entries(const Bundle& bundle, ImportReport& report) const;
    Status stage(const Bundle& bundle, const BundledEntry& entry, ImportBatch& batch) const;
    Status publish_batch(const Bundle& bundle, ImportBatch& batch, ImportReport& report) const;

    void verify_layer(std::size_t layer, VerifyReport& report) const;
    void verify_entry(const FoundEntry& found, std::size_t layer, VerifyReport& report) const;

    Options options_;
    FileSystem& files_;
    std::vector<std::unique_ptr<const Layer>> layers_;  // by Candidate::layer
    Troubles troubles_;
    mutable Patience patience_;  // with other processes
    mutable Counters counters_;
    // How much this process publishes before it looks at the directory's size again.
    mutable std::atomic<std::int64_t> bytes_before_scan_{0};
};

}  // namespace attnsmith::cache
