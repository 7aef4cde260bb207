#include "cache/bundle/layer.hpp"

#include <cerrno>
#include <span>

#include "cache/bundle/signature.hpp"
#include "cache/digest/sha256.hpp"

namespace attnsmith::cache {

Result<Bundle> BundleLayer::open(FileSystem& files, const std::string& path,
                                 std::span<const PublicKey> trusted) {
    Result<Bundle> bundle = Bundle::open(files, path);
    if (!bundle || trusted.empty()) return bundle;
    if (const Result<PublicKey> signer = find_signer(files, *bundle, trusted); !signer)
        return signer.status();
    return bundle;
}

Result<std::vector<Version>> BundleLayer::versions_of(const Digest& key) const {
    std::vector<Version> versions;
    if (!bundle_) return versions;
    for (const BundledEntry& entry : bundle_->entries_of(key)) versions.push_back(entry.name.version);
    return versions;
}

Result<EntryFile> BundleLayer::read(const layout::EntryName& name) const {
    const BundledEntry* const entry = bundle_ ? bundle_->find(name) : nullptr;
    if (entry == nullptr) return Status::from_errno(ENOENT, "find the entry", path_of(name));
    Result<EntryFile> file = bundle_->read(*entry);
    if (!file || !is_signed_) return file;
    // The manifest is signed, the entries are by their digests in it: the file may have changed since it was
    // opened.
    if (sha256_of(std::span(file->bytes.get(), file->size)) != entry->sha256) {
        return Status::recoverable_error(EBADMSG, path_of(name),
                                         "its SHA-256 is not the one of the signed manifest");
    }
    return file;
}

FoundEntries BundleLayer::find_all() const {
    FoundEntries found;
    if (!bundle_) {
        found.unreadable.push_back(bundle_.status());
        return found;
    }
    for (const BundledEntry& entry : bundle_->entries()) {
        FileInfo info = bundle_->info();
        info.bytes = info.allocated_bytes = entry.bytes;
        found.entries.push_back({entry.name, {path_, layout::entry_path(entry.name)}, info});
    }
    sort_entries(found.entries);
    return found;
}

LayerSize BundleLayer::measure() const {
    LayerSize size;
    if (!bundle_) {
        size.unreadable.push_back(bundle_.status());
        return size;
    }
    for (const BundledEntry& entry : bundle_->entries()) {
        ++size.entries;
        size.bytes += entry.bytes;
    }
    size.allocated_bytes = bundle_->info().allocated_bytes;
    return size;
}

Status BundleLayer::check_rest() const { return bundle_ ? bundle_->verify_known() : Status::success(); }

Result<std::string> BundleLayer::read_metadata(const layout::EntryName& name) const {
    const Result<EntryFile> file = read(name);
    if (!file) return file.status();
    const std::span<const std::byte> bytes(file->bytes.get(), file->size);
    const auto header = decode_entry_header(bytes);
    if (!header || header->metadata_bytes > bytes.size() - kEntryHeaderBytes) return std::string();
    const auto metadata = bytes.subspan(kEntryHeaderBytes, header->metadata_bytes);
    return std::string(reinterpret_cast<const char*>(metadata.data()), metadata.size());
}

}  // namespace attnsmith::cache
