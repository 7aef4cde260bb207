// A bundle: many entries in one file, a tar archive that opens with a manifest of digests. FORMAT.md is the
// specification. Internal to cache/; Store exports, imports and reads bundles as layers.
//
// The same entries have one bundle only, byte for byte, and a reader takes nothing else: no field, space or
// padding is free. So whoever wrote the file, what is accepted holds what its manifest says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/digest/sha256.hpp"
#include "cache/entries/entry_file.hpp"
#include "cache/entries/layout.hpp"
#include "cache/files/file_system.hpp"
#include "cache/files/status.hpp"

namespace attnsmith::cache {

inline constexpr std::string_view kManifestName = "manifest.json";

struct BundledEntry {
    layout::EntryName name;
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0;  // of the entry's first byte, from the file's
    Sha256Digest sha256;
};

// What a bundle's path says of an entry's place in it, for messages and listings.
std::string path_in_bundle(const std::string& bundle, const layout::EntryName& name);

// An open bundle. Thread-safe; in a child made by fork it goes on. The file is read by position, never
// mapped: whoever replaces, changes or cuts it while it is open makes reads fail, nothing worse.
class Bundle {
  public:
    // Larger manifests are not read: some 350,000 entries have one.
    static constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{1} << 26;

    // Reads the manifest and checks it, and the file's length against it; the entries are not looked at.
    // Links in `path` are followed. Fails with EINVAL for what is not a regular file, EBADMSG for what is no
    // bundle or not a whole one, EPROTONOSUPPORT for one of another schema, else with what the system said.
    // Messages of the first three say at which byte.
    static Result<Bundle> open(FileSystem& files, std::string path);

    const std::string& path() const { return path_; }
    const FileInfo& info() const { return info_; }
    // The digest of the manifest's text: what a signature of a bundle is made of.
    const Sha256Digest& manifest_sha256() const { return manifest_sha256_; }
    // By path: by key, then by the version's text.
    std::span<const BundledEntry> entries() const { return entries_; }
    std::span<const BundledEntry> entries_of(const Digest& key) const;
    const BundledEntry* find(const layout::EntryName& name) const;

    // What stands in the entry's place, unchecked.
    Result<EntryFile> read(const BundledEntry& entry) const;
    // The same with every byte checked, its header's and its padding's included: EBADMSG and EPROTONOSUPPORT
    // (a whole entry of another format version) as of open().
    // `check_content`, where there is one, judges the entry too.
    Result<EntryFile> read_checked(const BundledEntry& entry, const CheckContent& check_content = {}) const;
    // Checks every byte of the file. Entries of another format version are an error, but for `verify_known`,
    // which does not look into them.
    Status verify(const CheckContent& check_content = {}) const { return verify(true, check_content); }
    Status verify_known() const { return verify(false, {}); }

  private:
    Bundle(std::string path, std::unique_ptr<File> file, FileInfo info)
        : path_(std::move(path)), file_(std::move(file)), info_(info) {}

    Status refuse(std::uint64_t offset, std::string_view reason) const;
    Status read_header(std::uint64_t offset, std::string& name, std::uint64_t& bytes) const;
    Status read_exactly(std::uint64_t offset, std::span<std::byte> buffer) const;
    Status check_zeros(std::uint64_t offset, std::uint64_t bytes) const;
    Status verify(bool all_are_known, const CheckContent& check_content) const;
    Status read_manifest();
    Status check_places() const;
    std::uint64_t end_of_entries() const;

    std::string path_;
    std::unique_ptr<File> file_;
    FileInfo info_;
    Sha256Digest manifest_sha256_;
    std::uint64_t first_header_ = 0;  // of an entry, or where the end would be
    std::vector<BundledEntry> entries_;
};

// The manifest and all offsets of a bundle of these entries, whose offsets need not be set yet.
// REQUIRES: sorted by path, no two of one name; at most kMaxEntryBytes each.
struct BundleHead {
    std::string manifest;
    std::uint64_t file_bytes = 0;
};
BundleHead place_entries(std::span<BundledEntry> entries);

// In the order of a bundle.
bool comes_first_in_bundle(const layout::EntryName& a, const layout::EntryName& b);

}  // namespace attnsmith::cache
