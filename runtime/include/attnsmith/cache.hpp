// The kernel cache: what is in it, how large it is, why a kernel is a hit or a miss; verifying, limiting and
// moving it.
//
//   attnsmith::Runtime runtime;
//   for (const attnsmith::CacheEntry& entry : runtime.cache().list().entries) std::puts(entry.name.c_str());
//
// A cache is one writable directory and any number of read-only layers behind it: other directories, and
// bundles, which are files. An entry is one kernel by one version of NVRTC. Bytes are lengths of files, and
// allocated bytes what files take on their disk. Times are the file system's.
#pragma once

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
#include <utility>
#include <vector>

#include "attnsmith/export.h"
#include "attnsmith/prewarm.hpp"
#include "attnsmith/spec.hpp"

namespace attnsmith {

class Runtime;

// A file or directory that could not be read, and why: what is there is not known.
struct CacheUnreadable {
    std::string path{};    // of the file
    std::string reason{};  // one sentence
};

// A broken entry.
struct CacheBadEntry {
    std::string path{};    // of the file
    std::string reason{};  // one sentence
    std::string action{};  // "quarantined", or why it was left in place
};

// One kernel by one version of NVRTC.
struct CacheEntry {
    std::string key{};        // 32 hexadecimal digits
    std::string toolchain{};  // of the NVRTC that compiled it: "13.0.88"
    std::string name{};       // of the kernel; empty where the entry does not say it, as the next two
    int sm = 0;               // compute capability
    std::string target{};     // "sm_90a"
    std::uint64_t bytes = 0;  // of the file
    std::chrono::system_clock::time_point modified{};  // when it was published or, to the hour, last read
    std::size_t layer = 0;                             // its place in the directories
    std::string path{};                                // of the file
};

// What the cache has.
struct CacheListing {
    std::vector<std::string> directories{};     // the writable one first
    std::vector<CacheEntry> entries{};          // ordered by key; of one key the newest toolchain first
    std::vector<CacheUnreadable> unreadable{};  // there may be any kernel there
};

// What all processes did with the writable directory.
struct CacheCounters {
    std::optional<std::chrono::system_clock::time_point> since{};  // absent: nothing was ever counted
    std::uint64_t hits = 0;                                        // kernels that were found
    std::uint64_t misses = 0;                                      // kernels that were not
    std::uint64_t miss_errors = 0;                                 // misses under OnMiss::error
    std::uint64_t compiles = 0;                                    // by this and other processes
    std::uint64_t waits = 0;            // for another thread's or process's compile
    std::uint64_t remote_hits = 0;      // misses that a remote layer had
    std::uint64_t remote_misses = 0;    // answers that a remote has no such kernel
    std::uint64_t remote_failures = 0;  // remotes that could not be asked, or gave what was not to be taken
    std::uint64_t remote_bytes = 0;     // of entries that were fetched
    std::uint64_t quarantines = 0;      // broken entries that were put aside
    std::uint64_t evictions = 0;        // entries that were deleted to keep the limit
    std::uint64_t bytes_read = 0;       // of entries
    std::uint64_t bytes_published = 0;  // of entries
    std::uint64_t bytes_evicted = 0;    // allocated
};

// A read-only layer.
struct CacheLayer {
    std::string directory{};                    // or the bundle's file
    std::uint64_t entries = 0;                  // how many there are
    std::uint64_t bytes = 0;                    // of their files
    std::uint64_t allocated_bytes = 0;          // that they take on their disk
    std::string not_trusted_because{};          // empty if it is trusted
    std::string not_usable_because{};           // empty if it can be read
    std::vector<CacheUnreadable> unreadable{};  // the numbers lack what is there
};

// Numbers are those of the writable directory, but for `layers`.
struct CacheStatistics {
    std::string directory{};                    // the writable one
    bool writable = false;                      // whether entries can be stored
    std::string not_writable_because{};         // empty if it can be written
    std::string not_trusted_because{};          // empty if it is trusted; else it is neither read nor written
    std::uint64_t entries = 0;                  // how many there are
    std::uint64_t bytes = 0;                    // of their files
    std::uint64_t allocated_bytes = 0;          // that they take on their disk
    std::uint64_t max_bytes = 0;                // the limit of allocated bytes; 0: none
    std::uint64_t quarantined = 0;              // broken entries that were put aside
    std::uint64_t staging = 0;                  // files that somebody is writing, or died over
    CacheCounters counters{};                   // what processes did with it
    std::vector<CacheLayer> layers{};           // the read-only ones, in their order
    std::vector<CacheUnreadable> unreadable{};  // the numbers lack what is there
};

// What verify() found.
struct CacheVerification {
    std::string directory{};     // the writable one
    std::uint64_t checked = 0;   // entries looked at, bad ones included
    std::uint64_t unusable = 0;  // of `bad`, directories and bundles that could not be looked into
    std::uint64_t skipped = 0;   // whole entries of another format version
    std::uint64_t stale_staging_removed = 0;  // files of dead writers that were deleted
    std::vector<CacheBadEntry> bad{};         // the broken entries
};

// How far gc() goes.
struct CacheGcOptions {
    // What the entries may take on their disk, in allocated bytes; 0 keeps none. Absent: the Runtime's
    // cache_max_bytes, and what was used within the last hour stays.
    std::optional<std::uint64_t> max_bytes{};
};

// What the writable directory has after gc().
struct CacheKept {
    std::uint64_t entries = 0;          // how many there are
    std::uint64_t allocated_bytes = 0;  // that they take on their disk
};

// What gc() deleted.
struct CacheGcReport {
    std::string directory{};                   // the writable one
    std::uint64_t entries = 0;                 // deleted, as the next three
    std::uint64_t quarantined = 0;             // broken entries that were put aside
    std::uint64_t staging = 0;                 // files of dead writers
    std::uint64_t locks = 0;                   // that nobody holds
    std::uint64_t allocated_bytes = 0;         // freed
    std::optional<std::uint64_t> max_bytes{};  // the limit, if there was one
    std::optional<CacheKept> kept{};           // absent where that is not known
};

// What clear() deleted.
struct CacheClearReport {
    std::string directory{};         // the writable one
    std::uint64_t entries = 0;       // deleted, as the next three
    std::uint64_t quarantined = 0;   // broken entries that were put aside
    std::uint64_t staging = 0;       // files of dead writers
    std::uint64_t locks = 0;         // that nobody holds
    std::uint64_t bytes = 0;         // freed
    std::uint64_t staging_left = 0;  // younger than an hour: somebody may be writing them
    std::uint64_t locks_left = 0;    // held by somebody
};

// What remove() deleted.
struct CacheRemoveReport {
    std::string directory{};    // the writable one
    std::string key{};          // all of its digits
    std::uint64_t entries = 0;  // deleted: one for each toolchain that the key had
    std::uint64_t bytes = 0;    // freed
    std::uint64_t left = 0;     // in read-only layers, which are never written to
};

// What goes into a bundle, and where it is written.
struct CacheExportOptions {
    std::string file{};      // the bundle; replaced if it is there
    std::vector<int> sms{};  // only kernels for these compute capabilities; empty: for all
    // Only the kernels that planning could choose for these specs, on `sms` or else on those that the cache
    // has anything for. Absent: all kernels.
    std::optional<std::vector<AttentionSpec>> specs{};
    std::stop_token stop{};  // no file is written then, and CacheError is thrown
    // The secret key's file (make_signing_key()) that the bundle is signed with: `file`.sig is its signature.
    // Empty: ATTNSMITH_CACHE_SIGN_KEY, else it is not signed.
    std::string sign_key_file{};
};

// What an export wrote.
struct CacheExportReport {
    std::string file{};                         // the bundle
    std::uint64_t entries = 0;                  // in the bundle
    std::uint64_t bytes = 0;                    // the bundle's length
    std::uint64_t skipped = 0;                  // whole entries of another format version, left out
    std::uint64_t missing = 0;                  // kernels of the specs that the cache lacks
    std::vector<CacheBadEntry> bad{};           // left out, and left in place
    std::vector<CacheUnreadable> unreadable{};  // where there may be more that is wanted
    std::vector<PrewarmRefusal> unserved{};     // specs that no kernel serves on one of `sms`
    std::string signature_file{};               // beside the bundle; empty where it is not signed
    std::string signed_by{};                    // the key's id; likewise
};

// What goes into an image for containers, and where it is written.
struct CacheImageOptions {
    // The directory of an OCI image layout. It must not exist, be empty, or hold an image that was exported
    // to it, which is replaced whole.
    std::string oci{};
    std::string tag = "latest";                         // of the image in the layout
    std::vector<int> sms{};                             // as those of CacheExportOptions
    std::optional<std::vector<AttentionSpec>> specs{};  // likewise
    std::stop_token stop{};                             // no image is written then, and CacheError is thrown
};

// What was written as an image.
struct CacheImageReport {
    std::string oci{};                          // the directory
    std::string tag{};                          // of the image in the layout
    std::string digest{};                       // of the image's manifest: "sha256:<64 digits>"
    std::uint64_t entries = 0;                  // in the image
    std::uint64_t bytes = 0;                    // the layer's length
    std::uint64_t skipped = 0;                  // as those of CacheExportReport, and what follows likewise
    std::uint64_t missing = 0;                  // kernels of the specs that the cache lacks
    std::vector<CacheBadEntry> bad{};           // left out, and left in place
    std::vector<CacheUnreadable> unreadable{};  // where there may be more that is wanted
    std::vector<PrewarmRefusal> unserved{};     // specs that no kernel serves on one of `sms`
};

// One entry, as a push left it.
struct CachePushedEntry {
    std::string name{};       // of the kernel; empty where the entry does not say it, as the next one
    int sm = 0;               // compute capability
    std::string key{};        // 32 hexadecimal digits
    std::string toolchain{};  // of the NVRTC that compiled it: "13.0.88"
    std::uint64_t bytes = 0;  // of the entry
    // "pushed": a remote lacked it. "present": all had it. "failed": one has it not in the end. "cancelled":
    // by CachePushOptions::stop. "gone": evicted or cleared while the push was under way.
    std::string state{};
    std::string error{};  // of a failed one: what each such remote said
};

// A kernel that was asked for, and that the cache lacks.
struct CacheMissingKernel {
    std::string name{};  // of the kernel
    int sm = 0;          // compute capability
    std::string key{};   // 32 hexadecimal digits
};

// What is put to the remote layers.
struct CachePushOptions {
    std::vector<int> sms{};                             // as those of CacheExportOptions
    std::optional<std::vector<AttentionSpec>> specs{};  // likewise
    std::stop_token stop{};                             // what is not there yet is cancelled
    // Called from one thread at a time; what it throws, push() throws.
    std::function<void(const CachePushedEntry&, int done, int total)> progress{};
};

// What a push did.
struct CachePushReport {
    std::vector<std::string> remotes{};         // that are used, without passwords
    std::string signed_by{};                    // the key's id; empty where nothing is signed
    std::uint64_t pushed = 0;                   // entries that a remote lacked, as the next three
    std::uint64_t present = 0;                  // that all remotes had
    std::uint64_t failed = 0;                   // that a remote has not in the end
    std::uint64_t cancelled = 0;                // by CachePushOptions::stop
    std::uint64_t bytes = 0;                    // of what was pushed
    std::uint64_t skipped = 0;                  // whole entries of another format version, left out
    double seconds = 0;                         // of wall-clock time
    std::vector<CachePushedEntry> entries{};    // each that is sound, in the order of their keys
    std::vector<CacheMissingKernel> missing{};  // kernels of the specs that the cache lacks
    std::vector<CacheBadEntry> bad{};           // left out, and left in place
    std::vector<CacheUnreadable> unreadable{};  // where there may be more that is wanted
    std::vector<PrewarmRefusal> unserved{};     // specs that no kernel serves on one of `sms`
};

// What an import stored.
struct CacheImportReport {
    std::string file{};          // the bundle
    std::string directory{};     // the writable one
    std::uint64_t entries = 0;   // in the bundle
    std::uint64_t imported = 0;  // of those, what is new in the writable directory
    std::uint64_t present = 0;   // what was there already
    std::uint64_t bytes = 0;     // of what is new
    std::string signed_by{};     // the trusted key's id; empty where no signature is asked for
};

// The files of a new key, by make_signing_key().
struct SigningKey {
    std::string key_id{};           // 16 hexadecimal digits, by which signatures name it
    std::string secret_key_file{};  // PEM (PKCS#8), for its owner alone
    std::string public_key_file{};  // PEM (SubjectPublicKeyInfo), for all who are to trust it
};

// Makes an Ed25519 key that bundles can be signed with: its secret part is `file`, its public part
// `file`.pub, as OpenSSL writes them. Replaces nothing. Throws InvalidRequest where there is no name, and
// CacheError where one of the files is there already or cannot be written, or the system has neither OpenSSL
// 3 nor libsodium.
ATTNSMITH_API SigningKey make_signing_key(const std::string& file);

// One of what went into a key: a long value as its length and digest.
struct CacheKeyField {
    std::string label{};  // what the field is
    std::string value{};  // as the key has it

    bool operator==(const CacheKeyField&) const = default;
};

// A field that differs between two keys; a value is empty where that side has no such field.
struct CacheDifference {
    std::string label{};  // what the field is
    std::string here{};   // the kernel's
    std::string there{};  // the entry's
};

// The cached entry that shares the most fields with a kernel that is a miss.
struct CacheNearest {
    CacheEntry entry{};                          // the cached one
    std::vector<CacheDifference> differences{};  // the fields that differ
};

// Why one kernel is a hit or a miss.
struct CacheExplanation {
    std::string name{};                     // of the kernel
    int sm = 0;                             // compute capability
    std::string key{};                      // 32 hexadecimal digits
    bool hit = false;                       // one of the entries can be used
    std::vector<CacheKeyField> fields{};    // what the key was made of
    std::vector<CacheEntry> entries{};      // of the key
    std::vector<std::string> faults{};      // of each entry: why it cannot be used; empty where it can
    std::optional<CacheNearest> nearest{};  // of a key without entries
};

// Why several kernels are hits or misses.
struct CacheExplanations {
    std::vector<std::string> directories{};     // the writable one first
    std::vector<CacheExplanation> kernels{};    // each with its reasons
    std::vector<CacheUnreadable> unreadable{};  // a miss may lie there
    std::vector<PrewarmRefusal> unserved{};     // what no kernel serves
};

// A Runtime's cache, by Runtime::cache(). Copies are cheap, and keep alive what they need of the Runtime.
// Thread-safe. Every function throws InvalidRequest where the first cache directory is something else than a
// directory, and CacheError where there is none.
class ATTNSMITH_API Cache {
  public:
    // False if moved from.
    explicit operator bool() const noexcept { return impl_ != nullptr; }

    // The writable one first; none without a cache.
    std::vector<std::string> directories() const;
    // Every entry of the directory and its layers.
    CacheListing list() const;
    // Numbers, and what may be wrong.
    CacheStatistics stat() const;
    // Reads every byte of every entry; puts broken ones into quarantine.
    CacheVerification verify() const;

    // Deletes what was used longest ago until the limit is kept, and what dead processes left behind. Throws
    // CacheError where something could not be deleted, or another process is at it.
    CacheGcReport gc(const CacheGcOptions& options = {}) const;
    // Empties the writable directory. Throws CacheError where something could not be deleted.
    CacheClearReport clear() const;
    // Deletes the entries of one key, which its first digits may stand for, four or more, from the writable
    // directory. Throws InvalidRequest for what cannot begin a key; CacheError where no entry has it, several
    // keys begin so, or nothing could be deleted.
    CacheRemoveReport remove(std::string_view key) const;

    // Writes a bundle, which appears whole or not at all; the same entries give the same bytes. Throws
    // CacheError where it cannot be written or signed, or there is nothing to put into it; InvalidRequest for
    // a file that is no secret key or that others may read.
    CacheExportReport export_bundle(const CacheExportOptions& options) const;
    // The same as an image for containers, an OCI image layout of one layer, which has the entries below
    // /opt/attnsmith/cache, where a container can use them as a read-only layer. Throws InvalidRequest for a
    // tag that registries do not take; CacheError as export_bundle() does, and where the directory holds
    // anything else than an image that was exported to it.
    CacheImageReport export_image(const CacheImageOptions& options) const;
    // Adds a bundle's entries to the writable directory, after checking every byte. Throws CacheError where
    // the bundle is not sound or not signed by a key of RuntimeOptions::trust_key_files, if it has any
    // (nothing is stored then), or cannot be stored.
    CacheImportReport import_bundle(const std::string& file) const;

    // Puts entries to the remote layers that lack them, signed if the Runtime has a key to sign with: all, or
    // those that the options want. Compiles nothing and needs no NVRTC. Kernels come the other way by
    // Runtime::prewarm(), with PrewarmOptions::compile false. Throws InvalidRequest where there is no remote
    // layer that is used; CacheError where there is nothing to put there.
    CachePushReport push(const CachePushOptions& options = {}) const;

    // What the entries of one key were made of. Throws as remove() does for keys.
    CacheExplanations explain(std::string_view key) const;
    // Every kernel that planning could choose for these specs on these SMs: its key, whether it is there, and
    // how the closest cached entry differs. Compiles nothing. Throws InvalidRequest.
    CacheExplanations explain(std::span<const AttentionSpec> specs, std::span<const int> sms) const;

  private:
    friend class Runtime;
    struct Impl;
    explicit Cache(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
    std::shared_ptr<const Impl> impl_;
};

}  // namespace attnsmith
