// The entries of a cache directory. Internal to cache/.
#pragma once

#include <string>
#include <utility>

#include "cache/entries/layer.hpp"
#include "cache/files/file_system.hpp"

namespace attnsmith::cache {

// Keeps nothing open between calls. A directory that is missing, and one without a name, has no entries.
class DirectoryLayer final : public Layer {
  public:
    DirectoryLayer(FileSystem& files, std::string root) : files_(files), root_(std::move(root)) {}

    const std::string& path() const override { return root_; }
    std::string path_of(const layout::EntryName& name) const override;
    Result<std::vector<Version>> versions_of(const Digest& key) const override;
    Result<EntryFile> read(const layout::EntryName& name) const override;
    FoundEntries find_all() const override;
    LayerSize measure() const override;
    Result<std::string> read_metadata(const layout::EntryName& name) const override;

  private:
    FileSystem& files_;
    const std::string root_;
};

}  // namespace attnsmith::cache
