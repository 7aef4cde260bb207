// The entries of a bundle, read where they lie. Internal to cache/.
#pragma once

#include <string>
#include <utility>

#include "cache/bundle/bundle.hpp"
#include "cache/files/file_system.hpp"
#include "cache/store/layer.hpp"

namespace attnsmith::cache {

// Opens the bundle when it is made and keeps it open. One that cannot be opened has no entries, and
// find_all() says why.
class BundleLayer final : public Layer {
  public:
    BundleLayer(FileSystem& files, std::string path)
        : path_(std::move(path)), bundle_(Bundle::open(files, path_)) {}

    // Why it could not be opened; ok if it could.
    Status status() const { return bundle_.status(); }

    const std::string& path() const override { return path_; }
    std::string path_of(const layout::EntryName& name) const override { return path_in_bundle(path_, name); }
    Result<std::vector<Version>> versions_of(const Digest& key) const override;
    Result<EntryFile> read(const layout::EntryName& name) const override;
    FoundEntries find_all() const override;
    LayerSize measure() const override;
    Status check_rest() const override;
    Result<std::string> read_metadata(const layout::EntryName& name) const override;

  private:
    const std::string path_;
    const Result<Bundle> bundle_;
};

}  // namespace attnsmith::cache
