#include "cache/image/oci.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>

namespace attnsmith::cache::oci {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLayoutVersion = "1.0.0";
constexpr const char* kIndexType = "application/vnd.oci.image.index.v1+json";
constexpr const char* kManifestType = "application/vnd.oci.image.manifest.v1+json";
constexpr const char* kConfigType = "application/vnd.oci.image.config.v1+json";
// Uncompressed: cubins hardly shrink, and so the layer's digest is its diff_id too, whatever packs it later.
constexpr const char* kLayerType = "application/vnd.oci.image.layer.v1.tar";
constexpr const char* kTagAnnotation = "org.opencontainers.image.ref.name";
constexpr const char* kSchemaAnnotation = "io.attnsmith.schema";
constexpr const char* kImageSchema = "attnsmith.image/1";
constexpr std::string_view kDigestPrefix = "sha256:";

// What is not UTF-8 is replaced, for nothing here may throw.
std::string text_of(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json descriptor(const char* type, const Blob& blob) {
    return {{"mediaType", type}, {"digest", digest_text(blob.sha256)}, {"size", blob.bytes}};
}

// Null where there is no such member, or nothing that could have it.
const Json* member(const Json* parent, const char* name) {
    if (parent == nullptr || !parent->is_object()) return nullptr;
    const auto found = parent->find(name);
    return found == parent->end() ? nullptr : &*found;
}

// The only element of a list; null where there are none or several.
const Json* single(const Json* list) {
    return list != nullptr && list->is_array() && list->size() == 1 ? &list->front() : nullptr;
}

std::string_view text_in(const Json* json) {
    return json != nullptr && json->is_string() ? std::string_view(json->get_ref<const std::string&>())
                                                : std::string_view();
}

bool says_it_is_ours(const Json& document) {
    return text_in(member(member(&document, "annotations"), kSchemaAnnotation)) == kImageSchema;
}

std::optional<Sha256Digest> digest_in(const Json* descriptor, std::string_view type) {
    const std::string_view digest = text_in(member(descriptor, "digest"));
    if (text_in(member(descriptor, "mediaType")) != type || !digest.starts_with(kDigestPrefix)) {
        return std::nullopt;
    }
    return Sha256Digest::parse(digest.substr(kDigestPrefix.size()));
}

Json parse_document(std::string_view text) { return Json::parse(text, nullptr, false); }

}  // namespace

Blob blob_of(std::string_view text) { return {sha256_of(std::as_bytes(std::span(text))), text.size()}; }

std::string digest_text(const Sha256Digest& sha256) {
    return fmt::format("{}{}", kDigestPrefix, sha256.hex());
}

std::string blob_path(const Sha256Digest& sha256) {
    return fmt::format("{}/{}", kSha256Directory, sha256.hex());
}

bool is_blob_name(std::string_view file_name) { return Sha256Digest::parse(file_name).has_value(); }

bool is_tag(std::string_view tag) {
    constexpr std::string_view kFirst = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
    constexpr std::size_t kLongest = 128;
    if (tag.empty() || tag.size() > kLongest || kFirst.find(tag.front()) == kFirst.npos) return false;
    const auto is_allowed = [&](char c) { return kFirst.find(c) != kFirst.npos || c == '.' || c == '-'; };
    for (const char c : tag) {
        if (!is_allowed(c)) return false;
    }
    return true;
}

std::string layout_document() { return text_of({{"imageLayoutVersion", kLayoutVersion}}); }

std::string config_document(const Config& config, const Blob& layer) {
    // No times: an image of the same entries is the same image.
    return text_of({{"architecture", config.architecture},
                    {"os", "linux"},
                    {"config", {{"Env", config.environment}, {"Labels", config.labels}}},
                    {"rootfs", {{"type", "layers"}, {"diff_ids", Json::array({digest_text(layer.sha256)})}}},
                    {"history", Json::array({{{"created_by", "attnsmith cache export --oci"}}})}});
}

std::string manifest_document(const Blob& config, const Blob& layer, const Labels& labels) {
    Labels annotations = labels;
    annotations[kSchemaAnnotation] = kImageSchema;
    return text_of({{"schemaVersion", 2},
                    {"mediaType", kManifestType},
                    {"config", descriptor(kConfigType, config)},
                    {"layers", Json::array({descriptor(kLayerType, layer)})},
                    {"annotations", annotations}});
}

std::string index_document(const Blob& manifest, const std::string& architecture, const std::string& tag) {
    Json image = descriptor(kManifestType, manifest);
    image["platform"] = {{"architecture", architecture}, {"os", "linux"}};
    image["annotations"] = {{kTagAnnotation, tag}};
    return text_of({{"schemaVersion", 2},
                    {"mediaType", kIndexType},
                    {"manifests", Json::array({std::move(image)})},
                    {"annotations", {{kSchemaAnnotation, kImageSchema}}}});
}

std::vector<std::string> layer_directories() {
    std::vector<std::string> directories;
    for (std::size_t slash = kCacheInImage.find('/'); slash != kCacheInImage.npos;
         slash = kCacheInImage.find('/', slash + 1)) {
        directories.emplace_back(kCacheInImage.substr(0, slash + 1));
    }
    directories.push_back(fmt::format("{}/", kCacheInImage));
    return directories;
}

std::string path_in_layer(std::string_view path) { return fmt::format("{}/{}", kCacheInImage, path); }

std::optional<Sha256Digest> manifest_in(std::string_view index) {
    const Json document = parse_document(index);
    if (!says_it_is_ours(document)) return std::nullopt;
    return digest_in(single(member(&document, "manifests")), kManifestType);
}

std::optional<Named> blobs_in(std::string_view manifest) {
    const Json document = parse_document(manifest);
    if (!says_it_is_ours(document)) return std::nullopt;
    const auto config = digest_in(member(&document, "config"), kConfigType);
    const auto layer = digest_in(single(member(&document, "layers")), kLayerType);
    if (!config || !layer) return std::nullopt;
    return Named{*config, *layer};
}

}  // namespace attnsmith::cache::oci
