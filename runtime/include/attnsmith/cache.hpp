// The kernel cache: what is in it, how large it is, why a kernel is a hit or a miss; verifying, limiting and
// moving it.
//
//   attnsmith::Runtime runtime;
//   for (const attnsmith::CacheEntry& entry : runtime.cache().list().entries) std::puts(entry.name.c_str());
//
// A cache is one writable directory and any number of read-only layers: other directories, and bundles, which
// are files. An entry is one kernel by one version of NVRTC. Bytes are lengths of files, and allocated bytes
// what files take on their disk. Times are the file system's.
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

#include "attnsmith/coverage.hpp"
#include "attnsmith/export.h"
#include "attnsmith/prewarm.hpp"
#include "attnsmith/spec.hpp"

namespace attnsmith {

class Runtime;

// No limit, where a number of bytes is a limit (RuntimeOptions::cache_max_bytes, CacheGcOptions::max_bytes).
inline constexpr std::uint64_t kNoLimit = UINT64_MAX;

// A file or directory that could not be read: what is there is not known.
struct CacheUnreadable {
    // The path of the file or directory.
    std::string path{};
    // Why it could not be read, in one sentence.
    std::string reason{};
};

// A broken entry, directory or bundle.
struct CacheBadEntry {
    // The path of the file.
    std::string path{};
    // What is wrong with it, in one sentence.
    std::string reason{};
    // Whether the file was put aside, into quarantine.
    bool quarantined = false;
    // What was done with the file, in words: "quarantined", or "left in place: a read-only layer".
    std::string action{};
};

// One kernel by one version of NVRTC.
struct CacheEntry {
    // The key: 32 hexadecimal digits.
    std::string key{};
    // The version of the NVRTC that compiled the kernel: "13.0.88".
    std::string toolchain{};
    // The kernel's name; empty where the entry does not say it.
    std::string name{};
    // The compute capability that the kernel is for, 90 for 9.0; 0 where the entry does not say it.
    int sm = 0;
    // What NVRTC compiled for: "sm_90a"; empty where the entry does not say it.
    std::string target{};
    // The length of the file.
    std::uint64_t bytes = 0;
    // When the entry was published or, to the hour, last read.
    std::chrono::system_clock::time_point modified{};
    // The place in `directories` of the directory or bundle that has the entry; 0 is the writable one.
    std::size_t layer = 0;
    // The path of the file.
    std::string path{};
};

// What the cache has, by Cache::list().
struct CacheListing {
    // The writable directory, then the read-only layers.
    std::vector<std::string> directories{};
    // All entries, ordered by key; of one key the newest toolchain comes first.
    std::vector<CacheEntry> entries{};
    // What could not be read: there may be any kernel there.
    std::vector<CacheUnreadable> unreadable{};
};

// What all processes did with the writable directory.
struct CacheCounters {
    // When counting began; absent where nothing was ever counted.
    std::optional<std::chrono::system_clock::time_point> since{};
    // Kernels that were found.
    std::uint64_t hits = 0;
    // Kernels that were not found.
    std::uint64_t misses = 0;
    // Misses of programs that may not compile (OnMiss::error).
    std::uint64_t miss_errors = 0;
    // Kernels that were compiled.
    std::uint64_t compiles = 0;
    // How often a thread or process waited until another had compiled the kernel.
    std::uint64_t waits = 0;
    // Misses that a remote layer had.
    std::uint64_t remote_hits = 0;
    // Answers of remote layers that they have no such kernel.
    std::uint64_t remote_misses = 0;
    // How often a remote layer could not be asked, or gave what was not to be taken.
    std::uint64_t remote_failures = 0;
    // Bytes of the entries that were fetched from remote layers.
    std::uint64_t remote_bytes = 0;
    // Broken entries that were put aside.
    std::uint64_t quarantines = 0;
    // Entries that were deleted to keep the limit.
    std::uint64_t evictions = 0;
    // Bytes of the entries that were read.
    std::uint64_t bytes_read = 0;
    // Bytes of the entries that were stored.
    std::uint64_t bytes_published = 0;
    // Allocated bytes of the entries that were deleted to keep the limit.
    std::uint64_t bytes_evicted = 0;
};

// A read-only layer.
struct CacheLayer {
    // The directory, or the bundle's file.
    std::string directory{};
    // How many entries the layer has.
    std::uint64_t entries = 0;
    // Bytes of the entries' files.
    std::uint64_t bytes = 0;
    // Allocated bytes of the entries' files.
    std::uint64_t allocated_bytes = 0;
    // Why the layer is not trusted and not used; empty if it is trusted.
    std::string not_trusted_because{};
    // Why the layer cannot be read; empty if it can.
    std::string not_usable_because{};
    // What could not be read; the numbers lack what is there.
    std::vector<CacheUnreadable> unreadable{};
};

// Numbers of the writable directory and its layers, by Cache::stat(). All but `layers` are the writable
// directory's.
struct CacheStatistics {
    // The writable directory.
    std::string directory{};
    // Whether entries can be stored.
    bool writable = false;
    // Why nothing can be stored; empty if entries can.
    std::string not_writable_because{};
    // Why the directory is not trusted, and so neither read nor written; empty if it is trusted.
    std::string not_trusted_because{};
    // How many entries there are.
    std::uint64_t entries = 0;
    // Bytes of the entries' files.
    std::uint64_t bytes = 0;
    // Allocated bytes of the entries' files.
    std::uint64_t allocated_bytes = 0;
    // The limit of the allocated bytes; absent where there is none.
    std::optional<std::uint64_t> max_bytes{};
    // Broken entries that were put aside.
    std::uint64_t quarantined = 0;
    // Files that a process is writing, or was writing when it died.
    std::uint64_t staging = 0;
    // What all processes did with the directory.
    CacheCounters counters{};
    // The read-only layers, in the order in which they are looked at.
    std::vector<CacheLayer> layers{};
    // What could not be read; the numbers lack what is there.
    std::vector<CacheUnreadable> unreadable{};
};

// What Cache::verify() found.
struct [[nodiscard]] CacheVerification {
    // The writable directory.
    std::string directory{};
    // How many entries were looked at, broken ones included.
    std::uint64_t checked = 0;
    // How many of `bad` are directories and bundles that could not be looked into.
    std::uint64_t unusable = 0;
    // How many sound entries have another format version.
    std::uint64_t other_format = 0;
    // How many files of dead writers were deleted.
    std::uint64_t stale_staging_removed = 0;
    // What is broken.
    std::vector<CacheBadEntry> bad{};
};

// How far Cache::gc() goes.
struct CacheGcOptions {
    // The allocated bytes that entries may take: 0 deletes every entry, kNoLimit none. Absent: the Runtime's
    // limit (RuntimeOptions::cache_max_bytes), and what was used within the last hour stays.
    std::optional<std::uint64_t> max_bytes{};
};

// What the writable directory has after Cache::gc().
struct CacheKept {
    // How many entries there are.
    std::uint64_t entries = 0;
    // Allocated bytes of the entries' files.
    std::uint64_t allocated_bytes = 0;
};

// What Cache::gc() deleted.
struct CacheGcReport {
    // The writable directory.
    std::string directory{};
    // How many entries were deleted.
    std::uint64_t entries = 0;
    // How many broken entries that had been put aside were deleted.
    std::uint64_t quarantined = 0;
    // How many files of dead writers were deleted.
    std::uint64_t staging = 0;
    // How many lock files were deleted, which no process holds.
    std::uint64_t locks = 0;
    // Allocated bytes that were freed.
    std::uint64_t allocated_bytes = 0;
    // The limit; absent where there is none.
    std::optional<std::uint64_t> max_bytes{};
    // What is left; absent where that is not known.
    std::optional<CacheKept> kept{};
};

// What Cache::clear() deleted.
struct CacheClearReport {
    // The writable directory.
    std::string directory{};
    // How many entries were deleted.
    std::uint64_t entries = 0;
    // How many broken entries that had been put aside were deleted.
    std::uint64_t quarantined = 0;
    // How many files of dead writers were deleted.
    std::uint64_t staging = 0;
    // How many lock files were deleted, which no process holds.
    std::uint64_t locks = 0;
    // Bytes of the deleted files.
    std::uint64_t bytes = 0;
    // How many unfinished files were left, since they are younger than an hour: a process may be writing
    // them.
    std::uint64_t staging_left = 0;
    // How many lock files were left, since a process holds them.
    std::uint64_t locks_left = 0;
};

// What Cache::remove() deleted.
struct CacheRemoveReport {
    // The writable directory.
    std::string directory{};
    // All digits of the key.
    std::string key{};
    // How many entries were deleted: one for each toolchain that the key had.
    std::uint64_t entries = 0;
    // Bytes of the deleted files.
    std::uint64_t bytes = 0;
    // How many entries of the key are in read-only layers, which are never written to.
    std::uint64_t left = 0;
};

// What goes into a bundle, and who signs it.
struct CacheExportOptions {
    // The compute capabilities whose kernels are exported: 90 is 9.0. Empty: all.
    std::vector<int> sms{};
    // Only the kernels that planning could choose for these specs are exported, on `sms` or else on those
    // compute capabilities that the cache has anything for. Absent, and without a `coverage`: all kernels.
    std::optional<std::vector<AttentionSpec>> specs{};
    // Only the kernels that planning could choose for these attentions are exported; the report names what of
    // them is not supported, and has the warnings. Give `specs` or a `coverage`, not both.
    std::optional<Coverage> coverage{};
    // A stop: no file is written, and CacheError is thrown.
    std::stop_token stop{};
    // The file of the secret key (make_signing_key()) that signs the bundle; the signature is written to the
    // bundle's name with ".sig" at its end. Empty: ATTNSMITH_CACHE_SIGN_KEY, else the bundle is not signed.
    std::string sign_key_file{};
};

// What Cache::export_bundle() wrote.
struct [[nodiscard]] CacheExportReport {
    // The bundle.
    std::string file{};
    // How many entries are in the bundle.
    std::uint64_t entries = 0;
    // The bundle's length.
    std::uint64_t bytes = 0;
    // How many sound entries of another format version were left out.
    std::uint64_t other_format = 0;
    // How many kernels of the specs or the coverage the cache lacks.
    std::uint64_t missing = 0;
    // Broken entries, which were left out, and left in place.
    std::vector<CacheBadEntry> bad{};
    // What could not be read: there may be more there that is wanted.
    std::vector<CacheUnreadable> unreadable{};
    // What no kernel serves: parts of the coverage and, on each of `sms` that was given, specs.
    std::vector<PrewarmRefusal> unsupported{};
    // Coverage::skipped of the coverage that was given.
    std::vector<SkippedPart> skipped{};
    // Coverage::warnings of the coverage that was given.
    std::vector<ModelWarning> warnings{};
    // The signature's file; empty where the bundle is not signed.
    std::string signature_file{};
    // The id of the key that signed: 16 hexadecimal digits; empty where the bundle is not signed.
    std::string signed_by{};
};

// What goes into an image for containers.
struct CacheImageOptions {
    // The tag of the image in its layout.
    std::string tag = "latest";
    // The compute capabilities whose kernels are exported: 90 is 9.0. Empty: all.
    std::vector<int> sms{};
    // Only the kernels that planning could choose for these specs are exported, on `sms` or else on those
    // compute capabilities that the cache has anything for. Absent, and without a `coverage`: all kernels.
    std::optional<std::vector<AttentionSpec>> specs{};
    // Only the kernels that planning could choose for these attentions are exported; the report names what of
    // them is not supported, and has the warnings. Give `specs` or a `coverage`, not both.
    std::optional<Coverage> coverage{};
    // A stop: no image is written, and CacheError is thrown.
    std::stop_token stop{};
};

// What Cache::export_image() wrote.
struct [[nodiscard]] CacheImageReport {
    // The directory of the image layout.
    std::string directory{};
    // The tag of the image in its layout.
    std::string tag{};
    // The digest of the image's manifest: "sha256:<64 digits>".
    std::string digest{};
    // How many entries are in the image.
    std::uint64_t entries = 0;
    // The length of the image's layer.
    std::uint64_t bytes = 0;
    // How many sound entries of another format version were left out.
    std::uint64_t other_format = 0;
    // How many kernels of the specs or the coverage the cache lacks.
    std::uint64_t missing = 0;
    // Broken entries, which were left out, and left in place.
    std::vector<CacheBadEntry> bad{};
    // What could not be read: there may be more there that is wanted.
    std::vector<CacheUnreadable> unreadable{};
    // What no kernel serves: parts of the coverage and, on each of `sms` that was given, specs.
    std::vector<PrewarmRefusal> unsupported{};
    // Coverage::skipped of the coverage that was given.
    std::vector<SkippedPart> skipped{};
    // Coverage::warnings of the coverage that was given.
    std::vector<ModelWarning> warnings{};
};

// How a push left one entry. The JSON has the enumerators' names.
enum class PushState : std::uint8_t {
    pushed = 1,     // A remote layer lacked the entry, and has it now.
    present = 2,    // All remote layers had the entry.
    failed = 3,     // A remote layer does not have the entry in the end.
    cancelled = 4,  // CachePushOptions::stop was requested before.
    gone = 5,       // The entry was evicted or cleared while the push was under way.
};

// Gives the enumerator's name: "pushed".
[[nodiscard]] ATTNSMITH_API std::string_view to_string(PushState state) noexcept;

// One entry of a push.
struct CachePushedEntry {
    // The kernel's name; empty where the entry does not say it.
    std::string name{};
    // The compute capability that the kernel is for, 90 for 9.0; 0 where the entry does not say it.
    int sm = 0;
    // The key: 32 hexadecimal digits.
    std::string key{};
    // The version of the NVRTC that compiled the kernel: "13.0.88".
    std::string toolchain{};
    // The length of the entry.
    std::uint64_t bytes = 0;
    // How the push left the entry.
    PushState state = PushState::cancelled;
    // What each remote layer said that failed; else empty.
    std::string error{};
};

// A kernel that was asked for, and that the cache lacks.
struct CacheMissingKernel {
    // The kernel's name.
    std::string name{};
    // The compute capability that the kernel is for: 90 is 9.0.
    int sm = 0;
    // The key: 32 hexadecimal digits.
    std::string key{};
};

// What is put to the remote layers.
struct CachePushOptions {
    // The compute capabilities whose kernels are pushed: 90 is 9.0. Empty: all.
    std::vector<int> sms{};
    // Only the kernels that planning could choose for these specs are pushed, on `sms` or else on those
    // compute capabilities that the cache has anything for. Absent, and without a `coverage`: all kernels.
    std::optional<std::vector<AttentionSpec>> specs{};
    // Only the kernels that planning could choose for these attentions are pushed; the report names what of
    // them is not supported, and has the warnings. Give `specs` or a `coverage`, not both.
    std::optional<Coverage> coverage{};
    // A stop: what the remote layers do not have yet is cancelled.
    std::stop_token stop{};
    // Called with each entry that is done, how many are done, and how many there are, by one thread at a
    // time. What it throws, push() throws.
    std::function<void(const CachePushedEntry&, int done, int total)> progress{};
};

// What Cache::push() did.
struct [[nodiscard]] CachePushReport {
    // The addresses of the remote layers that are used, without user, password and query.
    std::vector<std::string> remotes{};
    // The id of the key that signed: 16 hexadecimal digits; empty where nothing is signed.
    std::string signed_by{};
    // How many entries are of PushState::pushed.
    std::uint64_t pushed = 0;
    // How many entries are of PushState::present.
    std::uint64_t present = 0;
    // How many entries are of PushState::failed.
    std::uint64_t failed = 0;
    // How many entries are of PushState::cancelled.
    std::uint64_t cancelled = 0;
    // Bytes of the entries of PushState::pushed.
    std::uint64_t bytes = 0;
    // How many sound entries of another format version were left out.
    std::uint64_t other_format = 0;
    // The wall-clock time of the whole push.
    double seconds = 0;
    // Each sound entry, in the order of the keys.
    std::vector<CachePushedEntry> entries{};
    // Kernels of the specs or the coverage that the cache lacks.
    std::vector<CacheMissingKernel> missing{};
    // Broken entries, which were left out, and left in place.
    std::vector<CacheBadEntry> bad{};
    // What could not be read: there may be more there that is wanted.
    std::vector<CacheUnreadable> unreadable{};
    // What no kernel serves: parts of the coverage and, on each of `sms` that was given, specs.
    std::vector<PrewarmRefusal> unsupported{};
    // Coverage::skipped of the coverage that was given.
    std::vector<SkippedPart> skipped{};
    // Coverage::warnings of the coverage that was given.
    std::vector<ModelWarning> warnings{};
};

// What Cache::import_bundle() stored.
struct [[nodiscard]] CacheImportReport {
    // The bundle.
    std::string file{};
    // The writable directory.
    std::string directory{};
    // How many entries are in the bundle.
    std::uint64_t entries = 0;
    // How many of the bundle's entries are new in the writable directory.
    std::uint64_t imported = 0;
    // How many of the bundle's entries were in the writable directory already.
    std::uint64_t present = 0;
    // Bytes of the new entries.
    std::uint64_t bytes = 0;
    // The id of the trusted key that signed the bundle; empty where no signature is asked for.
    std::string signed_by{};
};

// The files of a new key, by make_signing_key().
struct SigningKey {
    // The id by which signatures name the key: 16 hexadecimal digits.
    std::string key_id{};
    // The file of the secret key, which its owner alone may read: PEM (PKCS#8).
    std::string secret_key_file{};
    // The file of the public key, for all who are to trust it: PEM (SubjectPublicKeyInfo).
    std::string public_key_file{};
};

// Makes an Ed25519 key that bundles can be signed with: its secret part is `file`, its public part
// `file`.pub, as OpenSSL writes them. Replaces nothing. Throws InvalidRequest where there is no name, and
// CacheError where one of the files is there already or cannot be written, or the system has neither OpenSSL
// 3 nor libsodium.
[[nodiscard]] ATTNSMITH_API SigningKey make_signing_key(const std::string& file);

// One of the fields that a key was made of.
struct CacheKeyField {
    // What the field is.
    std::string label{};
    // The field's value; of a long value its length and digest.
    std::string value{};

    bool operator==(const CacheKeyField&) const = default;
};

// A field that differs between two keys.
struct CacheDifference {
    // What the field is.
    std::string label{};
    // The value in the kernel's key; empty where that has no such field.
    std::string here{};
    // The value in the entry's key; empty where that has no such field.
    std::string there{};
};

// The cached entry that shares the most fields with a kernel that is a miss.
struct CacheNearest {
    // The cached entry.
    CacheEntry entry{};
    // The fields that differ.
    std::vector<CacheDifference> differences{};
};

// An entry of a kernel's key, and whether it can be used.
struct CacheExplainedEntry {
    // The cached entry.
    CacheEntry entry{};
    // Why the entry cannot be used; empty where it can.
    std::string fault{};
};

// Why one kernel is a hit or a miss.
struct CacheExplanation {
    // The kernel's name.
    std::string name{};
    // The compute capability that the kernel is for: 90 is 9.0.
    int sm = 0;
    // The key: 32 hexadecimal digits.
    std::string key{};
    // Whether one of the entries can be used.
    bool hit = false;
    // What the key was made of.
    std::vector<CacheKeyField> fields{};
    // All entries of the key.
    std::vector<CacheExplainedEntry> entries{};
    // What comes nearest to a key without entries; absent where it has some, or nothing is like it.
    std::optional<CacheNearest> nearest{};
};

// Why several kernels are hits or misses.
struct CacheExplanations {
    // The writable directory, then the read-only layers.
    std::vector<std::string> directories{};
    // The kernels, each with its reasons.
    std::vector<CacheExplanation> kernels{};
    // What could not be read: a kernel that is a miss may be there.
    std::vector<CacheUnreadable> unreadable{};
    // What no kernel serves: specs on a compute capability, and parts of the coverage that was given.
    std::vector<PrewarmRefusal> unsupported{};
    // Coverage::skipped of the coverage that was given.
    std::vector<SkippedPart> skipped{};
    // Coverage::warnings of the coverage that was given.
    std::vector<ModelWarning> warnings{};
};

// Writes schema attnsmith.cache-ls/1.
[[nodiscard]] ATTNSMITH_API std::string to_json(const CacheListing& report);
// Writes schema attnsmith.cache-stat/1.
[[nodiscard]] ATTNSMITH_API std::string to_json(const CacheStatistics& report);
// Writes schema attnsmith.cache-verify/1.
[[nodiscard]] ATTNSMITH_API std::string to_json(const CacheVerification& report);
// Writes schema attnsmith.cache-gc/1.
[[nodiscard]] ATTNSMITH_API std::string to_json(const CacheGcReport& report);
// Writes schema attnsmith.cache-clear/1.
[[nodiscard]] ATTNSMITH_API std::string to_json(const CacheClearReport& report);
// Writes schema attnsmith.cache-rm/1.
[[nodiscard]] ATTNSMITH_API std::string to_json(const CacheRemoveReport& report);
// Writes schema attnsmith.cache-export/1, with a "file".
[[nodiscard]] ATTNSMITH_API std::string to_json(const CacheExportReport& report);
// Writes schema attnsmith.cache-export/1, with an "oci", which is the directory.
[[nodiscard]] ATTNSMITH_API std::string to_json(const CacheImageReport& report);
// Writes schema attnsmith.cache-import/1.
[[nodiscard]] ATTNSMITH_API std::string to_json(const CacheImportReport& report);
// Writes schema attnsmith.cache-push/1.
[[nodiscard]] ATTNSMITH_API std::string to_json(const CachePushReport& report);
// Writes schema attnsmith.cache-keygen/1.
[[nodiscard]] ATTNSMITH_API std::string to_json(const SigningKey& key);
// Writes schema attnsmith.cache-explain/1.
[[nodiscard]] ATTNSMITH_API std::string to_json(const CacheExplanations& report);

// A Runtime's cache, by Runtime::cache(). A shared handle: copies are cheap, and keep alive what they need of
// the Runtime. Any number of threads may use one at the same time. `const` says that the handle does not
// change: gc(), clear(), remove(), import_bundle() and push() change files or remote layers, and so may other
// processes at any time. Every function throws InvalidRequest where the first cache directory is something
// else than a directory, CacheError where there is none, and Error for a Cache that was moved from.
class ATTNSMITH_API Cache {
  public:
    // False if moved from.
    explicit operator bool() const noexcept { return impl_ != nullptr; }

    // Gives the writable directory, then the read-only layers; empty without a cache.
    [[nodiscard]] std::vector<std::string> directories() const;
    // Lists every entry of the directory and its layers.
    [[nodiscard]] CacheListing list() const;
    // Gives numbers, and what may be wrong.
    [[nodiscard]] CacheStatistics stat() const;
    // Reads every byte of every entry, and puts broken ones into quarantine.
    [[nodiscard]] CacheVerification verify() const;

    // Deletes what was used longest ago until the limit is kept, and what dead processes left. Throws
    // CacheError where something could not be deleted, or another process is at it.
    CacheGcReport gc(const CacheGcOptions& options = {}) const;
    // Empties the writable directory. Throws CacheError where something could not be deleted.
    CacheClearReport clear() const;
    // Deletes the entries of one key from the writable directory. The first digits of the key may stand for
    // it, four or more. Throws InvalidRequest for what cannot begin a key; CacheError where no entry has it,
    // several keys begin so, or nothing could be deleted.
    CacheRemoveReport remove(std::string_view key) const;

    // Writes a bundle to `file`, which appears whole or not at all, and replaces what was there. The same
    // entries give the same bytes. Throws CacheError where the bundle cannot be written or signed, or there
    // is nothing to put into it; InvalidRequest for an empty name, and for a key file that is no secret key
    // or that others may read.
    CacheExportReport export_bundle(const std::string& file, const CacheExportOptions& options = {}) const;
    // Writes an image for containers to `directory`: an OCI image layout of one layer, which has the entries
    // below /opt/attnsmith/cache, where a container can use them as a read-only layer. The directory must not
    // exist, be empty, or hold an image that was exported to it, which is replaced whole. Throws
    // InvalidRequest for an empty name and for a tag that registries do not take; CacheError where the image
    // cannot be written, the directory holds anything else, or there is nothing to put into the image.
    CacheImageReport export_image(const std::string& directory, const CacheImageOptions& options = {}) const;
    // Adds a bundle's entries to the writable directory, after checking every byte. Throws CacheError where
    // the bundle is not sound or not signed by a key of RuntimeOptions::trust_key_files, if it has any
    // (nothing is stored then), or cannot be stored.
    CacheImportReport import_bundle(const std::string& file) const;

    // Puts entries to the remote layers that lack them, signed if the Runtime has a key to sign with: all, or
    // those that the options select. Compiles nothing and needs no NVRTC. Kernels come the other way by
    // Runtime::prewarm(), with PrewarmOptions::compile false. Throws InvalidRequest where there is no remote
    // layer that is used; CacheError where there is nothing to put there.
    CachePushReport push(const CachePushOptions& options = {}) const;

    // Says what the entries of one key were made of. The first digits of the key may stand for it, four or
    // more. Throws InvalidRequest for what cannot begin a key; CacheError where no entry has it, or several
    // keys begin so.
    [[nodiscard]] CacheExplanations explain(std::string_view key) const;
    // Says of every kernel that planning could choose for these specs on these compute capabilities its key,
    // whether it is there, and how the nearest cached entry differs. Compiles nothing. Throws InvalidRequest.
    [[nodiscard]] CacheExplanations explain(std::span<const AttentionSpec> specs,
                                            std::span<const int> sms) const;
    // Explains the kernels of all attentions of a coverage, whose unsupported and skipped parts and warnings
    // are in the report. Compiles nothing. Throws InvalidRequest.
    [[nodiscard]] CacheExplanations explain(const Coverage& coverage, const std::vector<int>& sms) const;

  private:
    friend class Runtime;
    struct Impl;
    explicit Cache(std::shared_ptr<const Impl> impl) noexcept : impl_(std::move(impl)) {}
    std::shared_ptr<const Impl> impl_;
};

}  // namespace attnsmith
