// What a store tells: what lies in it, and what its operations did.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cache/digest/digest.hpp"
#include "cache/digest/sha256.hpp"
#include "cache/entries/counters.hpp"
#include "cache/entries/entry.hpp"
#include "cache/files/file_system.hpp"
#include "cache/files/status.hpp"

namespace attnsmith::cache {

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

// What was done with a bad entry that was put aside.
inline constexpr std::string_view kQuarantined = "quarantined";

struct BadEntry {
    std::string path;
    std::string reason;
    std::string action;  // kQuarantined, or why it was left in place
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
    std::string signature_file;      // empty where it is not signed, as the next one
    std::string signed_by;           // the key's id
};

struct ImageReport {
    std::string directory;
    std::vector<Digest> keys;        // of the entries in the image, in its order
    Sha256Digest manifest;           // what registries call the image's digest
    std::uint64_t entries = 0;       // in the image; with none, no directory is made
    std::uint64_t bytes = 0;         // the layer's length
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
    std::string signed_by;        // the id of the trusted key; empty where no key is required
};

}  // namespace attnsmith::cache
