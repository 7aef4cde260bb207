// The entries of a bundle, read where they lie. Internal to cache/.
#pragma once

#include <span>
#include <string>
#include <utility>

#include "cache/bundle/bundle.hpp"
#include "cache/entries/layer.hpp"
#include "cache/files/file_system.hpp"
#include "cache/signing/keys.hpp"

namespace attnsmith::cache {

// Opens the bundle when it is made and keeps it open. One that cannot be opened, or that none of the keys
// signed where there are any, has no entries, and find_all() says why.
class BundleLayer final : public Layer {
  public:
    BundleLayer(FileSystem& files, std::string path, std::span<const PublicKey> trusted)
        : path_(std::move(path)), is_signed_(!trusted.empty()), bundle_(open(files, path_, trusted)) {}

    // Why it could not be opened or is not trusted; ok if it is used.
    Status status() const { return bundle_.status(); }

    const std::string& path() const override { return path_; }
    std::string path_of(const layout::EntryName& name) const override { return path_in_bundle(path_, name); }
    Result<std::vector<Version>> versions_of(const Digest& key) const override;
    Result<EntryFile> read(const layout::EntryName& name) const override;
    FoundEntries find_all() const override;
    LayerSize measure() const override;
    bool is_signed() const override { return is_signed_; }
    bool outlives_path() const override { return bundle_.status().ok(); }
    Status check_rest() const override;
    Result<std::string> read_metadata(const layout::EntryName& name) const override;

  private:
    static Result<Bundle> open(FileSystem& files, const std::string& path,
                               std::span<const PublicKey> trusted);

    const std::string path_;
    const bool is_signed_;  // and so what is read is held against the manifest
    const Result<Bundle> bundle_;
};

}  // namespace attnsmith::cache
