// The documents and names of an OCI image layout (image-spec 1.0) that holds a cache directory as one layer.
// FORMAT.md, "An image", is the specification. Pure functions: what they are given decides every byte.
// Internal to cache/.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/digest/sha256.hpp"

namespace attnsmith::cache::oci {

inline constexpr std::string_view kLayoutName = "oci-layout";
inline constexpr std::string_view kIndexName = "index.json";
inline constexpr std::string_view kBlobsDirectory = "blobs";
inline constexpr std::string_view kSha256Directory = "blobs/sha256";

// Where a container finds the cache, without the first slash.
inline constexpr std::string_view kCacheInImage = "opt/attnsmith/cache";

using Labels = std::map<std::string, std::string>;

// A file of the layout that is named by its digest.
struct Blob {
    Sha256Digest sha256;
    std::uint64_t bytes = 0;
};

Blob blob_of(std::string_view text);
std::string digest_text(const Sha256Digest& sha256);  // "sha256:<64 digits>"
std::string blob_path(const Sha256Digest& sha256);    // in the layout
bool is_blob_name(std::string_view file_name);

// What registries take for a tag: 1 to 128 letters, digits, '_', '.' and '-', of which the last two do not
// begin it.
bool is_tag(std::string_view tag);

std::string layout_document();

struct Config {
    std::string architecture;              // Go's name of it: "amd64"
    std::vector<std::string> environment;  // "NAME=value"
    Labels labels;
};
std::string config_document(const Config& config, const Blob& layer);
// The labels are its annotations, with one that says who wrote it.
std::string manifest_document(const Blob& config, const Blob& layer, const Labels& labels);
std::string index_document(const Blob& manifest, const std::string& architecture, const std::string& tag);

// The directories above the shards, each with a slash at its end, the outermost first.
std::vector<std::string> layer_directories();
// Of something in the cache directory, such as "01/<key>-<version>.entry".
std::string path_in_layer(std::string_view path);

// The manifest that an index names, if this module may have written it: an index that another program added
// an image to is not ours any more.
std::optional<Sha256Digest> manifest_in(std::string_view index);
// The config and the layer that a manifest of ours names.
struct Named {
    Sha256Digest config;
    Sha256Digest layer;
};
std::optional<Named> blobs_in(std::string_view manifest);

}  // namespace attnsmith::cache::oci
