// Store's export to an image layout.
#include <fmt/format.h>

#include <cerrno>
#include <optional>
#include <set>
#include <utility>

#include "cache/bundle/picking.hpp"
#include "cache/bundle/tar.hpp"
#include "cache/bundle/tar_append.hpp"
#include "cache/entries/layer.hpp"
#include "cache/entries/layout.hpp"
#include "cache/files/named_file.hpp"
#include "cache/image/layout_directory.hpp"
#include "cache/image/oci.hpp"
#include "cache/store/store.hpp"

namespace attnsmith::cache {
namespace {

// Writes a file and knows its digest.
class HashedFile {
  public:
    explicit HashedFile(StagedFile& staged) : staged_(staged) {}

    tar::Append append() {
        return [this](std::span<const std::byte> bytes) {
            sha256_.add(bytes);
            bytes_ += bytes.size();
            return staged_.append(bytes);
        };
    }
    oci::Blob blob() const { return {sha256_.digest(), bytes_}; }

  private:
    StagedFile& staged_;
    Sha256 sha256_;
    std::uint64_t bytes_ = 0;
};

oci::Labels labels_of(const ImageOptions& image, std::span<const ListedEntry> entries) {
    oci::Labels labels = image.describe ? image.describe(entries) : oci::Labels();
    std::uint64_t bytes = 0;
    std::set<Version> toolchains;
    for (const ListedEntry& entry : entries) {
        bytes += entry.bytes;
        toolchains.insert(entry.version);
    }
    std::string versions;
    for (const Version& version : toolchains) {
        versions += (versions.empty() ? "" : ",") + version.to_string();
    }
    labels["io.attnsmith.entries"] = fmt::to_string(entries.size());
    labels["io.attnsmith.bytes"] = fmt::to_string(bytes);
    labels["io.attnsmith.toolchains"] = versions;
    labels["io.attnsmith.directory"] = fmt::format("/{}", oci::kCacheInImage);
    return labels;
}

Status write_directory(const tar::Append& append, const std::string& name) {
    return append(tar::encode_directory_header(name));
}

// The image's digest.
Result<oci::Blob> write_documents(const StagedLayout& staged, const ImageOptions& image,
                                  const oci::Blob& layer, const oci::Labels& labels) {
    const oci::Config config{image.architecture, image.environment, labels};
    const Result<oci::Blob> config_blob = staged.write_blob(oci::config_document(config, layer));
    if (!config_blob) return config_blob;
    const Result<oci::Blob> manifest = staged.write_blob(oci::manifest_document(*config_blob, layer, labels));
    if (!manifest) return manifest;
    Status written = staged.write(oci::kLayoutName, oci::layout_document());
    if (!written.ok()) return written;
    written = staged.write(oci::kIndexName, oci::index_document(*manifest, image.architecture, image.tag));
    if (!written.ok()) return written;
    return manifest;
}

// Shells complete names of directories with a slash.
std::string without_slashes_at_end(std::string directory) {
    while (directory.size() > 1 && directory.ends_with('/')) directory.pop_back();
    return directory;
}

}  // namespace

struct Store::ImageLayer {
    oci::Blob blob;
    std::vector<ListedEntry> picked;
    LeftOut left_out;
};

Result<ImageReport> Store::export_image(const ImageOptions& image, const Wanted& wanted,
                                        const std::stop_token& stop) const {
    const Result<Path> target = named_file(without_slashes_at_end(image.directory),
                                           "not the name of a directory that an image may replace");
    if (!target) return target.status();
    if (!oci::is_tag(image.tag)) {
        return Status::recoverable_error(EINVAL, image.directory,
                                         fmt::format("{} is no tag for an image", tar::quoted(image.tag)));
    }
    if (const Status there = find_occupant(files_, *target).status(); !there.ok()) return there;
    if (stop.stop_requested()) return export_stopped(*target);
    Listing listing = list_for_export(wanted);
    ImageReport report;
    report.directory = image.directory;
    report.unreadable = std::move(listing.unreadable);
    if (listing.entries.empty()) return report;

    Result<StagedLayout> staged = StagedLayout::create(files_, *target);
    if (!staged) return staged.status();
    Result<ImageLayer> layer = write_layer(*staged, *target, listing.entries, stop);
    if (!layer) return layer.status();
    report.skipped = layer->left_out.skipped;
    report.bad = std::move(layer->left_out.bad);
    if (layer->picked.empty()) return report;
    const Result<oci::Blob> manifest =
        write_documents(*staged, image, layer->blob, labels_of(image, layer->picked));
    if (!manifest) return manifest.status();
    if (Status moved = staged->move_to_target(); !moved.ok()) return moved;

    report.manifest = manifest->sha256;
    report.entries = layer->picked.size();
    report.bytes = layer->blob.bytes;
    for (const ListedEntry& entry : layer->picked) report.keys.push_back(entry.key);
    return report;
}

// Entries are appended as they are picked: whatever others evict meanwhile, the layer has what was judged.
Result<Store::ImageLayer> Store::write_layer(StagedLayout& staged, const Path& target,
                                             std::span<const ListedEntry> listed,
                                             const std::stop_token& stop) const {
    Result<StagedFile> file = staged.create_blob();
    if (!file) return file.status();
    HashedFile hashed(*file);
    const tar::Append append = hashed.append();
    for (const std::string& directory : oci::layer_directories()) {
        if (Status status = write_directory(append, directory); !status.ok()) return status;
    }
    ImageLayer layer;
    std::string shard;
    for (const ListedEntry& entry : listed) {  // of equal ones the lowest layer's comes first
        if (stop.stop_requested()) return export_stopped(target);
        if (!layer.picked.empty() && have_one_name(layer.picked.back(), entry)) continue;
        std::optional<JudgedEntry> judged = pick(*layers_[entry.layer], entry, options_, layer.left_out);
        if (!judged) continue;
        if (layout::shard_name(entry.key) != shard) {
            shard = layout::shard_name(entry.key);
            Status status = write_directory(append, oci::path_in_layer(shard) + "/");
            if (!status.ok()) return status;
        }
        const std::string path = oci::path_in_layer(layout::entry_path({entry.key, entry.version}));
        const std::span<const std::byte> bytes(judged->file.bytes.get(), judged->file.size);
        if (Status status = tar::append_file(append, path, bytes); !status.ok()) return status;
        ListedEntry& picked = layer.picked.emplace_back(entry);
        picked.bytes = bytes.size();
        picked.metadata = std::move(judged->entry.metadata);
    }
    if (Status status = tar::append_zeros(append, tar::kEndBytes); !status.ok()) return status;
    layer.blob = hashed.blob();
    Status named = staged.name_blob(std::move(*file), layer.blob.sha256);
    if (!named.ok()) return named;
    return layer;
}

}  // namespace attnsmith::cache
